#!/usr/bin/env python3
"""The CPU attention kernel: every instruction set compared with the core's peak and with PyTorch's operator, short shards with
one long sequence, and several threads with one. Peaks are measured in the same rounds.

    bench/report.py .venv/bin/python bench/attention.py [--only "lengths bf16 d128 8:8"]

Alone on the machine, else the verdicts are "not decidable here". Prints a header and a line a pass of a row, for
bench/report.py: rates in GFLOP/s, round by round.
"""

import argparse
import json
import math
import os
import pathlib
import re
import sys
import time

from attention_rows import CONTEXT, ISAS, SHARDS, name, pairs, rows, shards_of

LEAST_S = 5e-3  # of a contender's turn
LONGEST_LOOP_S = 50e-3  # on several threads
MOST_DISTANCE = 1e-2  # O rounded to bf16 is off by 2e-3, two of them by 3e-3
FLOPS = {"forward": 4, "backward": 10}  # a pair, head and element of a head
# Freed memory is kept, and all of it is in huge pages where the system grants them, as in a training run.
MEMORY = {"THP_MEM_ALLOC_ENABLE": "1",
          "GLIBC_TUNABLES": f"glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.top_pad={1 << 29}:"
                            f"glibc.malloc.trim_threshold={1 << 40}"}


def carved(*like):
    """Tensors of zeros of these (shape, dtype), one behind the other in one allocation, as a heap has them: tensors that all
    begin a huge page would share their places in the caches."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in like]
    parts = torch.zeros(sum(sizes), dtype=torch.uint8).split(sizes)
    return [part.view(dtype).view(shape) for part, (shape, dtype) in zip(parts, like)]


class Problem:
    """Causal runs (position, queries) on one document, which read the same keys. Backward starts from LSE and delta."""

    def __init__(self, row, runs):
        self.row, self.pairs = row, pairs(runs)
        queries, keys = sum(count for _, count in runs), max(map(sum, runs))
        own, wide = torch.bfloat16 if row.format == "bf16" else torch.float32, torch.float32
        of_q, of_k = (queries, row.heads, row.head_dim), (keys, row.kv_heads, row.head_dim)
        of = {"q": (of_q, own), "k": (of_k, own), "v": (of_k, own), "o": (of_q, own), "d_o": (of_q, own),
              "lse": (of_q[:2], wide), "delta": (of_q[:2], wide), "dq": (of_q, wide), "dk": (of_k, wide), "dv": (of_k, wide)}
        self.tensors = dict(zip(of, carved(*of.values())))
        torch.manual_seed(1)
        for letter in ("q", "k", "v", "d_o"):
            self.tensors[letter].uniform_(-math.sqrt(3), math.sqrt(3))
        ranges, first = [], 0
        for position, count in runs:
            ranges.append([first, count, position, 0, keys, 0])
            first += count
        self.kernel = cpu_attention.Attention(ranges, self.tensors, row.kv_used)
        self.prepare(row.isas[0])

    def prepare(self, isa):
        self.kernel.run("forward", isa)
        self.tensors["delta"].copy_((self.tensors["o"].float() * self.tensors["d_o"].float()).sum(-1))

    def flops(self, way):
        return FLOPS[way] * self.row.head_dim * self.pairs * self.row.kv_used * self.row.heads // self.row.kv_heads

    def contender(self, way, isa, pool=None, wall=False):
        return lambda: (self.flops(way), self.kernel.run(way, isa, pool, wall))


class Operator:
    """PyTorch's, on one thread, on the values of a problem of one sequence whose query heads have a key head each. Its best
    case: every head contiguous, results in memory that was freed before."""

    def __init__(self, problem):
        self.problem = problem
        own = [problem.tensors[letter][:, :problem.row.kv_used].transpose(0, 1)[None] for letter in ("q", "k", "v", "d_o")]
        *self.qkv, self.d_o = carved(*((one.shape, one.dtype) for one in own))
        for copy, one in zip((*self.qkv, self.d_o), own):
            copy.copy_(one)
        self.forward()

    def forward(self):
        self.o, self.lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*self.qkv, 0.0, True)

    def backward(self):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(self.d_o, *self.qkv, self.o, self.lse, 0.0, True)

    def check(self, isa):
        ours = self.problem.tensors["o"][:, :self.problem.row.kv_used].transpose(0, 1)[None].double()
        distance = ((ours - self.o.double()).norm() / self.o.double().norm()).item()
        if not distance < MOST_DISTANCE:
            print(f"{name(self.problem.row)}, {isa}: O is off PyTorch's by {distance:.2e}", file=sys.stderr)
            sys.exit(70)  # 1 is a bar that is missed

    def contender(self, way):
        def play():
            begin = time.thread_time()
            getattr(self, way)()
            return self.problem.flops(way), time.thread_time() - begin
        return play


def loop(isa, form, pool, bursts=1, wall=False):
    """The multiply-adds that are the peak."""
    return lambda: cpu_attention.multiply_adds(isa, form == "bf16", bursts, pool, wall)


def rates(contenders, rounds):
    """GFLOP/s of each contender, a function that returns (FLOP, seconds) of a call, in each round. A round begins with another
    one each time, and calls each as often as it takes to fill LEAST_S; where that is several times, once more before, which
    does not count."""
    calls = {}
    for which, play in contenders.items():
        _, seconds = play()
        if seconds < LEAST_S:
            _, seconds = play()  # its own caches warm
        calls[which] = math.ceil(LEAST_S / max(seconds, 1e-9))
    found, names = {which: [] for which in contenders}, list(contenders)
    for turn in range(rounds):
        for which in names[turn % len(names):] + names[:turn % len(names)]:
            if calls[which] > 1:
                contenders[which]()  # after another's data in the caches
            flops, seconds = map(sum, zip(*(contenders[which]() for _ in range(calls[which]))))
            found[which].append(flops / seconds / 1e9)
    return found


def twice(contenders):
    """All one after another, then all again: what lies between two turns of one is what lies between it and the others."""
    return contenders | {f"{which} again": play for which, play in contenders.items()}


def write(line, **values):
    print(json.dumps(values | {"line": line}), flush=True)


def write_row(row, way, found, **more):
    write(row.kind, **row._asdict(), name=name(row), gflops=found, **more, **{"pass": way})


def in_huge_pages():
    """The share of the heap, in which the tensors lie; 0 where the system does not say."""
    found = re.search(r"\[heap\]\n.*?^Anonymous: +(\d+) .*?^AnonHugePages: +(\d+) ", pathlib.Path("/proc/self/smaps").read_text(),
                      re.DOTALL | re.MULTILINE)
    return int(found[2]) / int(found[1]) if found else 0


class Measurer:
    def __init__(self, rounds, cores):
        self.rounds = rounds
        os.sched_setaffinity(0, cores[1:] or cores)  # the pool's threads inherit these
        self.all = cpu_attention.LIBRARY.thread_pool(len(cores))
        os.sched_setaffinity(0, cores[:1])
        self.one = cpu_attention.LIBRARY.thread_pool(1)
        self.cores = len(cores)

    def peaks(self, available):
        contenders = {}
        for isa in available:
            form = "bf16" if isa == "avx512_bf16" else "fp32"
            bursts = math.ceil(LEAST_S / loop(isa, form, self.one)()[1])
            contenders |= {isa: loop(isa, form, self.one), f"{isa} on all cores": loop(isa, form, self.all, bursts, wall=True)}
        # Twice as many rounds: the best of as many turns as the kernel's.
        write("peaks", gflops=rates(contenders, 2 * self.rounds))

    def row(self, row):
        if row.kind == "threads":
            self.threads(row)
            return
        begin, used = time.monotonic(), time.thread_time()
        getattr(self, row.kind)(row)
        write("core", processor_seconds=time.thread_time() - used, wall_seconds=time.monotonic() - begin)

    def lengths(self, row):
        problem = Problem(row, [(0, row.length)])
        operator = Operator(problem)
        for isa in reversed(row.isas):
            problem.prepare(isa)
            operator.check(isa)
        for way in FLOPS:
            contenders = {}
            for isa in row.isas:
                contenders |= {f"{isa} loop": loop(isa, row.format, self.one), isa: problem.contender(way, isa)}
            contenders["torch"] = operator.contender(way)
            write_row(row, way, rates(twice(contenders), self.rounds), huge_pages=in_huge_pages())

    def shards(self, row):
        isa, whole = row.isas[0], Problem(row, [(0, CONTEXT)])
        problems = {queries: Problem(row, shards_of(queries)) for queries in SHARDS}
        for way in FLOPS:
            sizes = {str(queries): problem.contender(way, isa) for queries, problem in problems.items()}
            judged, long = str(SHARDS[-1]), whole.contender(way, isa)
            # Both of the judged figure twice, apart.
            found = rates({"judged again": sizes[judged], "long": long} | sizes | {"long again": long}, self.rounds)
            write_row(row, way, found, judged=SHARDS[-1],
                      sizes=[{"queries": queries, "shards": len(shards_of(queries))} for queries in SHARDS])

    def threads(self, row):
        if self.cores == 1:
            return
        isa, problem = row.isas[0], Problem(row, [(0, row.length)])
        for way in FLOPS:
            on_all = problem.contender(way, isa, self.all, wall=True)
            # The loop runs as long as the kernel, so that other programs disturb both alike.
            seconds = min(max(on_all()[1], LEAST_S), LONGEST_LOOP_S)
            bursts = math.ceil(seconds / loop(isa, row.format, self.one)()[1])
            write_row(row, way, rates(twice({
                "loop": loop(isa, row.format, self.one), "loop on all": loop(isa, row.format, self.all, bursts, wall=True),
                "one": problem.contender(way, isa), "all": on_all}), self.rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="rows whose names hold all these words")
    parser.add_argument("--threads", type=int, default=2, help="of the rows on several; 1: none of them")
    options = parser.parse_args()
    for count in ("rounds", "threads"):
        if getattr(options, count) < 1:
            parser.error(f"--{count} {getattr(options, count)}: at least 1")
    if MEMORY.items() - os.environ.items():  # both are read when a process begins
        os.execve(sys.executable, [sys.executable, "-W", "ignore", *sys.argv], os.environ | MEMORY)
    global cpu_attention, torch
    try:
        import cpu_attention
        import torch
    except (ImportError, OSError) as error:
        parser.error(f"{error}: it needs PyTorch and what make build makes")
    torch.set_num_threads(1)
    available = [isa for isa in ISAS if cpu_attention.LIBRARY.available(isa.encode())]
    chosen = [row for row in rows(available) if set(options.only.split()) <= set(name(row).split())]
    if not chosen:
        parser.error(f"--only '{options.only}': no row has all these words; one is called '{name(next(rows(available)))}'")
    cores = sorted(os.sched_getaffinity(0))[:options.threads]
    cpu_attention.LIBRARY.header(b"attention", json.dumps({
        "rounds": options.rounds, "cores": len(cores), "instruction_sets": available, "torch": torch.__version__,
        "amx_bf16": "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text().split()}).encode())
    measurer = Measurer(options.rounds, cores)
    measurer.peaks(available)
    for index, row in enumerate(chosen):
        print(f"[{index + 1}/{len(chosen)}] {name(row)}", file=sys.stderr)
        measurer.row(row)


if __name__ == "__main__":
    main()
