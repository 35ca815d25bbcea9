#!/usr/bin/env python3
"""A ping-pong of a Llama of Transformers over a slow wire: two processes in network namespaces of their own. Needs root.

    bench/report.py --out FILE.jsonl build/python/tester/bin/python bench/python_wire.py [--mb-per-s 25]

A veth pair joins the namespaces, and a token bucket limits each direction. Rank 0 has two documents, rank 1 has four of
half that length each, so rank 1 computes attention for rank 0. Gradients are not summed: their sum would travel
on the same wire. `open`: the same steps while the wire has no limit, so that their exchanges take the processor's time
and hardly any other. Prints a header and a line a round, for bench/report.py.
"""

import argparse
import contextlib
import ctypes
import datetime
import gc
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
import warnings

import python as training

# Of a size at which each exchange is shorter than what it can run under. Ranks do the linear work of the first
# nano-batch, then that of the second, then the attention of each: so Q, K and V of the second and O of the first travel
# under attention alone, which grows faster than what travels.
MODEL = training.MODEL | dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=2, num_attention_heads=16,
                              num_key_value_heads=1)
NAMES = ["distca_bench_0", "distca_bench_1"]
NEW_NET = 0x40000000  # CLONE_NEWNET
# Arm -> (nano-batches at once, whether the wire has a limit). The same one twice is the control.
ARMS = {"ping-pong": (2, True), "ping-pong again": (2, True), "no overlap": (1, True), "open": (2, False)}


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def namespaces():
    for name in NAMES:
        subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
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
            subprocess.run(["ip", "netns", "delete", name], check=False)


def limit(mb_per_s):
    """Of each direction; None: none."""
    for rank, name in enumerate(NAMES):
        device = ["netns", "exec", name, "tc", "qdisc"]
        subprocess.run(["ip", *device, "delete", "dev", f"wire{rank}", "root"], check=False, stderr=subprocess.DEVNULL)
        if mb_per_s:
            ip(*device, "add", "dev", f"wire{rank}", "root", "tbf", "rate", f"{8 * mb_per_s}mbit",
               "burst", str(72 << 10), "limit", str(4 << 20))  # a packet of 64 KiB fits into the bucket


class Rank:
    def __init__(self, rank, store, options):
        with open(f"/run/netns/{NAMES[rank]}") as of_rank:  # before any thread is there
            if ctypes.CDLL(None, use_errno=True).setns(of_rank.fileno(), NEW_NET):
                raise OSError(ctypes.get_errno(), f"cannot enter {NAMES[rank]}")
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
        warnings.filterwarnings("ignore")
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "GLOO_SOCKET_IFNAME": f"wire{rank}"}
        import torch
        import torch.distributed as dist
        from transformers import LlamaConfig, LlamaForCausalLM

        import distca.transformers
        self.torch, self.dist, self.distca = torch, dist, distca
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=training.RANKS,
                                timeout=datetime.timedelta(seconds=300))
        self.models = {}
        for nano_batches in (1, 2):
            torch.manual_seed(1)
            model = LlamaForCausalLM(LlamaConfig(**MODEL)).train()
            distca.transformers.attach(model, nano_batches=nano_batches)
            self.models[nano_batches] = model
        half = options.tokens // 2
        self.halves = [training.Rank.batch(self, [half] if rank == 0 else [half // 2] * 2) for _ in range(2)]
        self.whole = training.Rank.batch(self, [half] * 2 if rank == 0 else [half // 2] * 4)

    def step(self, nano_batches):
        """Both do the same work: without overlap, one half of the batch behind the other."""
        model = self.models[nano_batches]
        batches = [self.whole] if nano_batches == 2 else self.halves
        gc.collect()
        self.dist.barrier()
        sent = self.distca.statistics().sent_bytes
        begin = time.monotonic()
        for batch in batches:
            model(**batch).loss.backward()
        end = time.monotonic()
        model.zero_grad()
        return {"step_s": end - begin, "sent_bytes": self.distca.statistics().sent_bytes - sent}


def serve(pipe, rank, store, options):
    served = Rank(rank, store, options)
    pipe.send(None)
    while (nano_batches := pipe.recv()) is not None:
        pipe.send(served.step(nano_batches))
    served.dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb-per-s", type=int, default=25)
    parser.add_argument("--tokens", type=int, default=12288, help="of a rank")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    os.environ |= training.KEEPS_FREED_MEMORY
    print(json.dumps(training.header(options, "python_wire", MODEL)), flush=True)
    with namespaces():
        ranks = training.Ranks(options, serve, tempfile.mktemp("distca_bench"))
        names = list(ARMS)
        for index in range(-1, options.rounds):
            arms = {}
            for arm in names[index % len(names):] + names[:index % len(names)]:
                nano_batches, limited = ARMS[arm]
                limit(options.mb_per_s if limited else None)
                for pipe in ranks.pipes:
                    pipe.send(nano_batches)
                arms[arm] = ranks.hear()
            if index >= 0:  # the first is for warming up
                print(json.dumps({"line": "round", "round": index, "arms": arms}), flush=True)
        ranks.close()


if __name__ == "__main__":
    main()
