#!/usr/bin/env python3
"""Training steps that are predicted first and measured after, by the program's own verbs.

    bench/report.py --out FILE.jsonl bench/predicted.py --program build/release/distca --data data/stdlib [--only TEXT]

Configurations are in groups. Of each group, `distca profile --machine` measures what operations and messages take; `distca
simulate` predicts the steps of its configurations; the predictions are written, with their hash, before the first run; then
`distca train` runs the configurations, one after the other, --rounds times. A core's speed drifts within minutes on rented
machines, so prices are measured right before what they predict. Two ranks on two quiet cores. The
limited wires need root (network namespaces, a token bucket in each direction). Prints a header and a line a measurement,
for bench/report.py.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import wire as wires
from wire import header, say

MODEL = {"model.vocab_size": 256, "model.hidden_size": 256, "model.intermediate_size": 512, "model.num_hidden_layers": 4,
         "model.num_attention_heads": 4, "model.num_key_value_heads": 2, "model.head_dim": 64}
PIPELINE = {"parallel.pipeline_model_parallel_size": 2, "batch.nano_batches": 8}
STEPS = 4  # the first, which warms up, does not count


def steps(tokens, scheduler="balanced", overlap="ping-pong", **others):
    """What is given to `distca train`."""
    keys = MODEL | {"batch.nano_batches": 2, "batch.nano_batch_tokens": tokens, "batch.max_document_tokens": tokens,
                    "plan.scheduler": scheduler, "train.overlap": overlap, "train.steps": STEPS}
    return keys | {name.replace("__", "."): value for name, value in others.items()}


def pipeline(tokens, outstanding):
    return steps(tokens, **PIPELINE, parallel__outstanding_weight_gradients=outstanding)


class Group(NamedTuple):
    """Configurations by name that the prices of one measurement predict, and how that is made."""

    configurations: dict
    tokens: int = 8192  # the most of a nano-batch
    others: dict = {}  # keys
    wire: int = 0  # MB/s; 0 is the loopback interface


GROUPS = {
    "up to 8K": Group({
        "none, local, 8K": steps(8192, "local", "none"),
        "none, greedy, 8K": steps(8192, "greedy", "none"),
        "within, greedy, 8K": steps(8192, "greedy", "within"),
        "within, local, 4K": steps(4096, "local", "within"),
        "ping-pong, greedy, 4K": steps(4096, "greedy"),
        "ping-pong, balanced, 8K": steps(8192),
    }),
    "16K": Group({
        "none, balanced, 16K": steps(16384, "balanced", "none"),
        "within, balanced, 16K": steps(16384, "balanced", "within"),
        "ping-pong, local, 16K": steps(16384, "local"),
        "ping-pong, balanced, 16K": steps(16384),
    }, tokens=16384),
    "25 MB/s": Group({
        "none, balanced, 8K, 25 MB/s": steps(8192, "balanced", "none"),
        "ping-pong, balanced, 8K, 25 MB/s": steps(8192),
    }, wire=25),
    "60 MB/s": Group({
        "within, balanced, 8K, 60 MB/s": steps(8192, "balanced", "within"),
        "ping-pong, balanced, 8K, 60 MB/s": steps(8192),
    }, wire=60),
    # Prices do not depend on how many nano-batches there are, but the time to measure them does.
    "pipeline": Group({
        "two stages, 8K": pipeline(8192, 0),
        "two stages, weight gradients wait, 8K": pipeline(8192, 2),
        "two stages, weight gradients wait, 4K": pipeline(4096, 1),
    }, others=PIPELINE | {"batch.nano_batches": 4, "parallel.outstanding_weight_gradients": 2}),
    "memory": Group({
        "ZeRO-1, 8K": steps(8192, parallel__use_distributed_optimizer="true"),
        "full recomputation, 8K": steps(8192, train__recompute="full"),
    }),
    "tensor": Group({
        "two ranks divide layers, 8K": steps(8192, parallel__tensor_model_parallel_size=2),
    }, others={"parallel.tensor_model_parallel_size": 2}),
}


def words(keys):
    return [f"{name}={value}" for name, value in keys.items()]


class Runner:
    """Runs verbs of the program with two ranks, over the loopback interface or a limited wire."""

    def __init__(self, options, folder):
        self.options, self.folder, self.ports = options, folder, iter(range(29600, 32000))
        self.own = ["data.prefix=" + str(options.data.resolve()), f"train.output_dir={folder / 'run'}",
                    "train.overwrite=true", "data.validation_fraction=0"]

    def call(self, *arguments):
        done = subprocess.run([self.options.program, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def ranks(self, wire, *arguments):
        """A verb of two ranks."""
        if not wire:
            return self.call(arguments[0], "--workers", 2, *arguments[1:])
        wires.limit(wire)
        wires.run_ranks([self.options.program, *map(str, arguments)], next(self.ports))
        return ""

    def machine(self, name, group):
        """The file of what was measured for a group."""
        file = self.folder / f"{name.replace('/', ' ')}.json"
        keys = MODEL | {"batch.nano_batches": 2, "batch.nano_batch_tokens": group.tokens,
                        "batch.max_document_tokens": group.tokens} | group.others
        self.ranks(group.wire, "profile", "--machine", "--seconds", self.options.seconds, "--out", file, *words(keys),
                   *self.own)
        return file

    def predict(self, keys, file):
        """Of each step that counts: seconds, the hash of its plans, and the largest peak of a rank's tensors."""
        found = []
        for step in range(2, STEPS + 1):
            json_of = json.loads(self.call("simulate", "--workers", 2, "--machine", file, "--step", step, "--json",
                                           *words(keys), *self.own))
            found.append({"step": step, "s": json_of["step_s"], "plan_hash": json_of["plan_hash"],
                          "peak_bytes": max(stage["peak_bytes"] for stage in json_of["stages"])})
        return found

    def measure(self, keys, wire):
        self.ranks(wire, "train", *words(keys), *self.own)
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        return [{"step": line["step"], "s": line["step_s"], "plan_hash": line["plan_hash"],
                 "peak_bytes": max(line["peak_bytes"])} for line in lines[1:]]

    def play(self, name, group):
        """Measures the machine, predicts, and runs a group."""
        file = self.machine(name, group)
        say(line="machine", of=name, file=json.loads(file.read_text()), at=now())
        predicted = {one: self.predict(keys, file) for one, keys in group.configurations.items()}
        text = json.dumps(predicted, sort_keys=True)
        say(line="predicted", of=name, sha256=hashlib.sha256(text.encode()).hexdigest(), steps=predicted, at=now())
        for number in range(self.options.rounds):
            for one, keys in group.configurations.items():
                say(line="run", of=name, round=number, name=one, steps=self.measure(keys, group.wire), at=now())


def now():
    return datetime.datetime.now().isoformat(timespec="seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/distca"))
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("data/stdlib"), help="a data set of bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60, help="of distca profile --machine")
    parser.add_argument("--only", default="", help="groups whose names have this text")
    options = parser.parse_args()
    options.program = str(options.program.resolve())
    chosen = {name: group for name, group in GROUPS.items() if options.only in name}
    if not chosen:
        sys.exit(f"no group has {options.only!r} in its name: {', '.join(GROUPS)}")
    say(**header("predicted", model=MODEL, steps=STEPS, rounds=options.rounds, seconds=options.seconds,
                 configurations=[name for group in chosen.values() for name in group.configurations]))
    needs_wire = any(group.wire for group in chosen.values())
    with tempfile.TemporaryDirectory() as folder, wires.namespaces() if needs_wire else contextlib.nullcontext():
        runner = Runner(options, pathlib.Path(folder))
        for name, group in chosen.items():
            runner.play(name, group)


if __name__ == "__main__":
    main()
