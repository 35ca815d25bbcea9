#!/usr/bin/env python3
"""How much of what two ranks of `distca train` send is hidden under what they compute, over a slow wire.

    bench/report.py --out FILE.jsonl bench/wire.py [--program build/release/distca] [--only TEXT]

As root, with iproute2, on two quiet cores; else exit code 77, with the reason. A veth pair joins two network namespaces,
and a token bucket limits each direction: as far as TCP can tell, two machines with a slow wire between them. A run has two
steps, of which the first, which warms up, does not count. Prints a header and a line a round, for bench/report.py.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

NAMES = [f"distca_bench_{os.getpid()}_{rank}" for rank in range(2)]
# Small buckets, since a model as small as this has one otherwise, whose sum of gradients would come behind backward.
KEYS = {"model.vocab_size": 256, "model.num_attention_heads": 4, "model.head_dim": 64, "batch.nano_batches": 2,
        "data.validation_fraction": 0, "parallel.bucket_mb": 0.25, "train.steps": 2, "train.overwrite": "true"}
# Arm -> (train.overlap, whether the wire has a limit). The same one twice is the control.
ARMS = {"none": ("none", True), "ping-pong": ("ping-pong", True), "ping-pong again": ("ping-pong", True),
        "open": ("ping-pong", False)}


class Setting(NamedTuple):
    mb_per_s: int
    tokens: int  # of a document, which is a nano-batch
    keys: dict


SETTINGS = {
    # Each rank holds half of a document. The later half has three times the pairs of the earlier one.
    "ping-pong": Setting(120, 3584, {"model.num_hidden_layers": 2, "model.hidden_size": 128, "model.intermediate_size": 768,
                                     "model.num_key_value_heads": 1, "plan.layout": "sequential"}),
    # The ranks divide the layers: rows travel. Attention has enough pairs to be cut into twelfths.
    "counter-phase": Setting(80, 5120, {"model.num_hidden_layers": 3, "model.hidden_size": 32, "model.intermediate_size": 64,
                                        "model.num_key_value_heads": 2, "parallel.tensor_model_parallel_size": 2}),
}


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def namespaces():
    """Two namespaces joined by a wire, which are removed at the end, also when this program is asked to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for name in NAMES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "wire0", "netns", NAMES[0], "type", "veth", "peer", "name", "wire1", "netns", NAMES[1])
        for rank, name in enumerate(NAMES):
            ip("-n", name, "address", "add", f"10.77.0.{rank + 1}/24", "dev", f"wire{rank}")
            ip("-n", name, "link", "set", f"wire{rank}", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def limit(mb_per_s):
    """Limits the rate of both directions. None removes the limit."""
    for rank, name in enumerate(NAMES):
        device = ["netns", "exec", name, "tc", "qdisc"]
        subprocess.run(["ip", *device, "delete", "dev", f"wire{rank}", "root"], check=False, stderr=subprocess.DEVNULL)
        if mb_per_s:  # a packet of 64 KiB fits into the bucket: the kernel need not cut it
            ip(*device, "add", "dev", f"wire{rank}", "root", "tbf", "rate", f"{8 * mb_per_s}mbit",
               "burst", str(max(72 << 10, 1000 * mb_per_s)), "limit", str(4 << 20))


def run_ranks(command, port):
    """The command as two ranks, each in its namespace, to their end."""
    started = []
    try:
        for rank, name in enumerate(NAMES):
            environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                                        "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port)}
            started.append(subprocess.Popen(["ip", "netns", "exec", name, *command], env=environment,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        errors = [process.communicate()[1] for process in started]
    finally:
        for process in started:  # which end with this program where it is stopped
            process.kill()
            process.wait()
    if any(process.returncode for process in started):
        sys.exit(f"{' '.join(command)}: {errors}")


def why_not():
    """Empty, or why no wire can be made here."""
    if os.geteuid() != 0 or not shutil.which("tc") or len(os.sched_getaffinity(0)) < 2:
        return "needs root, iproute2 and a core for each of two ranks"
    try:
        with namespaces():
            limit(1)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)} fails"
    return ""


def documents(program, folder, tokens):
    """A data set of as many documents as two steps have nano-batches."""
    for number in range(4):
        text = random.Random(number).choices(range(32, 127), k=tokens)
        (folder / f"{number}.txt").write_bytes(bytes(text))
    subprocess.run([program, "data", "prepare", "--text", folder, "--out", folder / "data"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def step(program, setting, arm, folder, port):
    """Figures of the second step of a run."""
    overlap, is_limited = ARMS[arm]
    limit(setting.mb_per_s if is_limited else None)
    keys = KEYS | setting.keys | {"batch.nano_batch_tokens": setting.tokens, "train.overlap": overlap,
                                  "data.prefix": folder / "data", "train.output_dir": folder / "run"}
    cores = sorted(os.sched_getaffinity(0))
    run_ranks(["sh", "-c", f'exec taskset -c $((RANK ? {cores[1]} : {cores[0]})) "$@"', "sh", program, "train",
               *(f"{name}={value}" for name, value in keys.items())], port)
    line = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[1])
    return {name: line[name] for name in ("step_s", "bytes_sent", "phases")}


def header(bench, **others):
    """The first line of a benchmark: `others`, and what bench/report.py says of a run."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True,
                            cwd=pathlib.Path(__file__).parent, check=False).stdout.strip()
    return {"line": "head", "bench": bench, "date": datetime.date.today().isoformat(), "commit": commit,
            "machine": next(line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")),
            "build": "Release", "compiler": f"Python {platform.python_version()}", "torch": ""} | others


def say(**line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/distca"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="settings whose names have this text")
    options = parser.parse_args()
    program = str(options.program.resolve())
    chosen = {name: setting for name, setting in SETTINGS.items() if options.only in name}
    if not chosen:
        sys.exit(f"no setting has {options.only!r} in its name: {', '.join(SETTINGS)}")
    if why := why_not():
        print(f"skipped: {why}", file=sys.stderr)
        sys.exit(77)
    say(**header("wire", rounds=options.rounds, settings={name: setting._asdict() for name, setting in chosen.items()}))
    ports, arms = iter(range(29600, 32000)), list(ARMS)
    with namespaces():
        for name, setting in chosen.items():
            with tempfile.TemporaryDirectory() as made:
                folder = pathlib.Path(made)
                documents(program, folder, setting.tokens)
                for number in range(options.rounds):
                    turn = arms[number % len(arms):] + arms[:number % len(arms)]
                    say(line="round", setting=name, round=number,
                        arms={arm: step(program, setting, arm, folder, next(ports)) for arm in turn})


if __name__ == "__main__":
    main()
