#!/usr/bin/env python3
"""The predicted peak of a rank's tensors beside the measured one: a dry run and a run for each setting.

    bench/memory_prediction.py build/release/distca DATA_PREFIX [--pipelines] [--only NAME;NAME] [KEY=VALUE ...]

Every setting runs on two workers, and on a dedicated server where it says so, with documents of at most 512 tokens, so
that attention costs little time. Prints as markdown, in MiB, the parts that `distca train --dry-run` predicts for the
worker and the server with the highest peaks, and the peak_bytes that metrics.jsonl has of the same ranks after two
steps. With --pipelines, other settings: pipelines, each with every train.recompute; of each stage, the rank with the
highest predicted peak.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

COMMON = ["batch.max_document_tokens=512", "train.steps=2", "train.validation_every=0",
          "train.validation_nano_batches=1"]
WIDE = ["model.hidden_size=1024", "model.intermediate_size=2816", "model.num_attention_heads=8",
        "model.num_key_value_heads=4", "model.head_dim=128"]
DEEP = ["model.hidden_size=512", "model.intermediate_size=1408", "model.num_attention_heads=8",
        "model.num_key_value_heads=4", "model.head_dim=64"]
# What is large, and the keys.
SETTINGS = {
    "weights": [*WIDE, "model.num_hidden_layers=4", "model.vocab_size=16384", "batch.nano_batch_tokens=1024"],
    "activations": [*DEEP, "model.num_hidden_layers=8", "batch.nano_batch_tokens=16384", "model.dtype=bfloat16"],
    "selective, a pair, a large vocabulary": [
        *DEEP, "model.num_hidden_layers=4", "model.vocab_size=32768", "batch.nano_batch_tokens=8192",
        "batch.nano_batches=2", "train.recompute=selective"],
    "full, bf16, checkpoints": [
        *DEEP, "model.num_hidden_layers=8", "model.vocab_size=32768", "batch.nano_batch_tokens=16384",
        "batch.nano_batches=2", "model.dtype=bfloat16", "train.recompute=full", "checkpoint.every_steps=1"],
    "ZeRO-1": [
        *WIDE, "model.num_hidden_layers=8", "model.vocab_size=16384", "batch.nano_batch_tokens=1024",
        "model.dtype=bfloat16", "parallel.use_distributed_optimizer=true"],
    "a dedicated server": [
        *DEEP, "model.num_hidden_layers=6", "batch.nano_batch_tokens=8192", "servers.dedicated=1"],
}

SMALL = ["model.hidden_size=256", "model.intermediate_size=704", "model.vocab_size=8192"]
# The workers, and the keys.
PIPELINES = {
    "2 stages x 2 replicas": (4, [
        *SMALL, "parallel.pipeline_model_parallel_size=2", "model.num_hidden_layers=8", "batch.nano_batches=8",
        "batch.nano_batch_tokens=4096"]),
    "2 stages x 2 replicas, 1f1b": (4, [
        *SMALL, "parallel.pipeline_model_parallel_size=2", "model.num_hidden_layers=8", "batch.nano_batches=8",
        "batch.nano_batch_tokens=4096", "parallel.pipeline_schedule=1f1b"]),
    "4 stages, bf16": (4, [
        *SMALL, "parallel.pipeline_model_parallel_size=4", "model.num_hidden_layers=8", "batch.nano_batches=16",
        "batch.nano_batch_tokens=2048", "model.dtype=bfloat16"]),
    "3 uneven stages, a dedicated server, no overlap": (3, [
        *SMALL, "parallel.pipeline_model_parallel_size=3", "parallel.pipeline_layers=3,3,2",
        "model.num_hidden_layers=8", "batch.nano_batches=6", "batch.nano_batch_tokens=2048", "train.overlap=none",
        "servers.dedicated=1"]),
}


def succeed(command):
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def predicted(program, words):
    """[(column, rank, {row: number}, where)] of the ranks shown."""
    text = succeed([program, "train", *words, "--dry-run"])
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("MiB "))
    header = re.split(r"  +", lines[begin].strip())[1:]
    columns = [{} for _ in header]
    for line in lines[begin + 1:begin + 1 + lines[begin + 1:].index(next(
            other for other in lines[begin + 1:] if other.startswith("Rank ")))]:
        name, *values = re.split(r"  +", line.strip())
        for column, value in zip(columns, values, strict=True):
            column[name] = float(value)
    peaks = re.findall(r"^Rank (\d+).* reaches its peak in (.*)\.$", text, flags=re.MULTILINE)
    return [(title, int(rank), column, where)
            for title, column, (rank, where) in zip(header, columns, peaks, strict=True)]


def measured(program, words):
    """MiB of each rank."""
    with tempfile.TemporaryDirectory(prefix="distca_memory_prediction_") as folder:
        out = os.path.join(folder, "run")
        succeed([program, "train", *words, f"train.output_dir={out}"])
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            last = [json.loads(line) for line in file][-1]
    return [value / 2**20 for value in last["peak_bytes"]]


def row(cells):
    return "| " + " | ".join(cells) + " |"


def show_setting(options, name, words):
    """A row for each rank shown; then a table of the parts."""
    given = [f"data.prefix={options.data}", "--workers", "2", *COMMON, *words]
    ranks = predicted(options.program, given)
    peaks = measured(options.program, given)
    print(f"\n## {name[0].upper()}{name[1:]}\n`{' '.join(words)}`\n")
    print(row(["MiB", *(title for title, _, _, _ in ranks)]))
    print(row(["---"] * (len(ranks) + 1)))
    for part in ranks[0][2]:
        values = [parts[part] for _, _, parts, _ in ranks]
        if part != "peak" and any(values):
            print(row([part, *(f"{value:,.1f}" for value in values)]))
    of_ranks = [(parts["peak"], peaks[rank]) for _, rank, parts, _ in ranks]
    print(row(["**predicted peak**", *(f"**{peak:,.1f}**" for peak, _ in of_ranks)]))
    print(row(["**measured peak**", *(f"**{peak:,.1f}**" for _, peak in of_ranks)]))
    print(row(["predicted / measured", *(f"{peak / was:.4f}" for peak, was in of_ranks)]))
    print(row(["predicted to be in", *(where for _, _, _, where in ranks)]), flush=True)


def show_pipeline(options, name, workers, words):
    """Three rows for each way to recompute."""
    print(f"\n## {name[0].upper()}{name[1:]}\n`--workers {workers} {' '.join(words)}`\n")
    for recompute in ["none", "selective", "full"]:
        given = [f"data.prefix={options.data}", "--workers", str(workers), *COMMON, *words,
                 f"train.recompute={recompute}"]
        ranks = predicted(options.program, given)
        peaks = measured(options.program, given)
        if recompute == "none":
            print(row(["train.recompute", "MiB", *(title for title, _, _, _ in ranks)]))
            print(row(["---"] * (len(ranks) + 2)))
            print(row(["", "nano-batches in flight",
                       *(f"{parts['nano-batches in flight']:.0f}" for _, _, parts, _ in ranks)]))
        for part in ["exchange buffers", "activations"]:
            print(row([recompute, part, *(f"{parts[part]:,.1f}" for _, _, parts, _ in ranks)]))
        print(row([recompute, "**predicted peak**", *(f"**{parts['peak']:,.1f}**" for _, _, parts, _ in ranks)]))
        print(row([recompute, "**measured peak**", *(f"**{peaks[rank]:,.1f}**" for _, rank, _, _ in ranks)]))
        print(row([recompute, "predicted / measured",
                   *(f"{parts['peak'] / peaks[rank]:.4f}" for _, rank, parts, _ in ranks)]), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("--pipelines", action="store_true")
    parser.add_argument("--only", default="", help="some of the settings, by name, with semicolons between")
    options, keys = parser.parse_known_args()
    only = [name for name in options.only.split(";") if name]
    if options.pipelines:
        for name in only or list(PIPELINES):
            workers, words = PIPELINES[name]
            show_pipeline(options, name, workers, [*words, *keys])
        return
    for name in only or list(SETTINGS):
        show_setting(options, name, [*SETTINGS[name], *keys])


main()
