#!/usr/bin/env python3
"""Loss and gradients of a small model on distca.attention, on a device and in the device's types, beside the same on one
process's CPU in fp64. A line of JSON for each type: the largest relative differences of all ranks.

    bench/gpu_python.py --device cuda --ranks 2

Weights and inputs are drawn in fp64 and rounded to the type before either computes, so what differs is what computing
rounds. Ranks have documents of their own, of which the first has most: their attention is balanced. The device of a rank
is that of its number, or the only one.
"""

import argparse
import json
import multiprocessing
import os
import sys
import warnings

warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import distca  # noqa: E402
from distca._group import by_itself  # noqa: E402

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYERS, WIDTH, HEADS, KV_HEADS, DIM, WORDS = 2, 128, 4, 2, 32, 256
LENGTHS = ((700, 130, 1, 450), (90, 33))  # of the documents of a rank
LEAST = 1e-3  # of the whole gradient: what the difference of a smaller one is compared with
SECONDS = 100  # that ranks may take to meet, or for a message


def weights(dtype, device):
    generator = torch.Generator().manual_seed(1)
    shapes = {"words": (WORDS, WIDTH), "out": (WORDS, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"{layer}.qkv": ((HEADS + 2 * KV_HEADS) * DIM, WIDTH), f"{layer}.o": (WIDTH, HEADS * DIM),
                   f"{layer}.up": (2 * WIDTH, WIDTH), f"{layer}.down": (WIDTH, 2 * WIDTH)}
    drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) * shape[1] ** -0.5
             for name, shape in shapes.items()}
    return {name: one.to(dtype).to(device, copy=True) for name, one in drawn.items()}


def loss_and_gradients(of, ids, cu_seqlens, dtype):
    """The mean loss of the next token, and the gradient of each weight, computed in `dtype`."""
    of = {name: one.to(dtype).requires_grad_() for name, one in of.items()}
    ids = ids.to(of["words"].device)
    x = F.embedding(ids[:-1], of["words"])
    for layer in range(LAYERS):
        heads = F.linear(F.rms_norm(x, (WIDTH,)), of[f"{layer}.qkv"]).unflatten(1, (-1, DIM))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        o = distca.attention(q, k, v, cu_seqlens, cu_seqlens, layer=layer)
        x = x + F.linear(o.flatten(1), of[f"{layer}.o"])
        x = x + F.linear(F.silu(F.linear(F.rms_norm(x, (WIDTH,)), of[f"{layer}.up"])), of[f"{layer}.down"])
    loss = F.cross_entropy(F.linear(F.rms_norm(x, (WIDTH,)), of["out"]).to(torch.promote_types(dtype, torch.float32)), ids[1:])
    loss.backward()
    return loss.item(), {name: one.grad.detach().cpu().double() for name, one in of.items()}


def compared(rank, ranks, device, dtype):
    """(loss, gradients): the relative differences of this rank."""
    lengths = LENGTHS[rank] if ranks > 1 else sum(LENGTHS, ())
    ids = torch.randint(WORDS, (sum(lengths) + 1,), generator=torch.Generator().manual_seed(rank))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    loss, got = loss_and_gradients(weights(dtype, device), ids, cu_seqlens, dtype)
    with by_itself():
        exact, want = loss_and_gradients(weights(dtype, "cpu"), ids, cu_seqlens, torch.float64)
    least = LEAST * torch.stack([one.norm() for one in want.values()]).norm()
    worst = max(((got[name] - want[name]).norm() / want[name].norm().clamp_min(least)).item() for name in want)
    return abs(loss - exact) / abs(exact), worst


def play(rank, ranks, options, port):
    """What rank 0 prints."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if ranks > 1:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        distca.init(backend=options.backend, timeout_s=SECONDS, startup_timeout_s=SECONDS)
    for name, dtype in TYPES.items():
        mine = torch.tensor([*compared(rank, ranks, device, dtype), distca.statistics().sent_bytes], dtype=torch.float64)
        if ranks > 1:
            dist.all_reduce(mine, dist.ReduceOp.MAX)
        if rank == 0:
            line = dict(zip(("loss", "gradients", "sent_bytes"), mine.tolist()))
            print(json.dumps({"ranks": ranks, "type": name} | line), flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    words.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    words.add_argument("--backend", choices=("gloo", "nccl"), help="as in distca.init")
    options = words.parse_args()
    if options.ranks == 1:
        return play(0, 1, options, None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=play, args=(rank, options.ranks, options, store.port)) for rank in range(options.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
