#!/usr/bin/env python3
"""What saving beside training costs: one run, traced, that saves after every other step.

    bench/checkpoint_cost.py build/release/distca DATA_PREFIX [--steps 14] [--model 100m|3m] [--out FOLDER]

Prints, from the trace, for how long each save held each rank's training thread up, as a share of the step; from
metrics.jsonl, the length of the steps beside which a checkpoint was written, of the others, and, as a control, of the
others halved among themselves; and the memory of the copies.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

MODELS = {
    "100m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 14, "num_attention_heads": 12,
             "num_key_value_heads": 12, "head_dim": 64},
    "3m": {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 6,
           "num_key_value_heads": 2, "head_dim": 32},
}


def ratio_words(a, b):
    return f"{statistics.median(a) / statistics.median(b):.3f} (each {min(a):.2f} .. {max(a):.2f} s, {len(a)} steps)"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--model", choices=MODELS, default="100m")
    parser.add_argument("--out")
    options = parser.parse_args()
    out = options.out or tempfile.mkdtemp(prefix="distca_checkpoint_cost_")
    trace = os.path.join(out, "trace.json")
    command = [options.program, "train", f"data.prefix={options.data}", "--workers", "2", "--trace", trace,
               f"train.output_dir={out}/run", f"train.steps={options.steps}", "batch.nano_batch_tokens=4096",
               "batch.nano_batches=2", "train.validation_every=0", "train.validation_nano_batches=1",
               "checkpoint.every_steps=2", "checkpoint.keep_last=1", "comm.timeout_s=300",
               f"train.trace_steps={options.steps - 2}"]
    command += [f"model.{key}={value}" for key, value in MODELS[options.model].items()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    with open(os.path.join(out, "run/metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    with open(trace, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    step_us = {(e["pid"], e["args"]["step"]): e["dur"] for e in events if e["cat"] == "step"}
    held = [(e["pid"], e["args"]["step"], e["dur"]) for e in events if e["name"] == "checkpoint"]
    print(f"{' '.join(command)}")
    print(f"copies: {2 * lines[-1]['checkpoint_copy_bytes'] / 2**20:.0f} MiB in all, on 2 workers")
    for rank, step, us in held:
        print(f"rank {rank} step {step}: held up {us / 1e3:.1f} ms of {step_us[rank, step] / 1e3:.1f} ms, "
              f"{100 * us / step_us[rank, step]:.3f} %")
    # The first step warms up, and the last one has no step after it.
    beside = [line["step_s"] for line in lines[2:-1] if line["step"] % 2 == 1]
    others = [line["step_s"] for line in lines[2:-1] if line["step"] % 2 == 0]
    print(f"step beside which a checkpoint is written / step beside which none is: {ratio_words(beside, others)}")
    print(f"control, every other one of the latter / the rest of them: {ratio_words(others[::2], others[1::2])}")
    if not options.out:
        shutil.rmtree(out)


main()
