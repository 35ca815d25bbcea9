#!/usr/bin/env python3
"""How much memory a step takes, by what is kept and what is computed again: short runs, one after another.

    bench/step_memory.py build/release/distca DATA_PREFIX [--tokens 16384] [--nano-batches 2] [--steps 2]
                         [--longest 1024] [--dtype float32] [--recompute none,selective,full] [KEY=VALUE ...]

Two workers; 4 layers, hidden size 256, vocabulary 32,768, unless KEY=VALUE says otherwise. Prints, from metrics.jsonl,
the most that the tensors of a rank took, the most that both processes had in RAM together, and the last step's time.
"""

import argparse
import json
import os
import subprocess
import tempfile

SHAPE = ["model.hidden_size=256", "model.intermediate_size=1024", "model.num_hidden_layers=4",
         "model.num_attention_heads=4", "model.num_key_value_heads=4", "model.head_dim=64", "model.vocab_size=32768"]


def run(options, recompute, out):
    command = [options.program, "train", f"data.prefix={options.data}", "--workers", "2",
               f"batch.nano_batch_tokens={options.tokens}", f"batch.nano_batches={options.nano_batches}",
               f"batch.max_document_tokens={options.longest}", *SHAPE, f"model.dtype={options.dtype}",
               f"train.recompute={recompute}", f"train.steps={options.steps}", "train.validation_every=0",
               f"train.output_dir={out}", *options.keys]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        return command, [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--nano-batches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--recompute", default="none,selective,full")
    options, options.keys = parser.parse_known_args()
    for recompute in options.recompute.split(","):
        with tempfile.TemporaryDirectory(prefix="distca_step_memory_") as folder:
            command, lines = run(options, recompute, os.path.join(folder, "run"))
        last = lines[-1]
        mib = 2**20
        print(" ".join(command[1:-1 - len(options.keys)] + options.keys))
        print(f"  tensors of a rank at most {max(last['peak_bytes']) / mib:,.0f} MiB, of which copies of weights "
              f"{max(last['weight_copy_bytes']) / mib:,.0f} MiB; both processes in RAM at most "
              f"{sum(last['resident_bytes']) / mib:,.0f} MiB; last step {last['step_s']:.2f} s, "
              f"{options.tokens * options.nano_batches / last['step_s']:,.0f} tokens/s", flush=True)


main()
