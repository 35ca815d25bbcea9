"""What is kept between calls: plans follow the numbers of cu_seqlens; kinds of layers and groups come and go without a trace."""

import ctypes
import os
import socket
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from attention_model import cu_seqlens_of, distance, qkv, sdpa, worst
from rank_processes import Ranks

import distca as ours
from distca import _group as group

# Numbers that PyTorch does not know of: the version of the tensor stays as it was.


def by_broadcast(cu_seqlens, numbers):
    dist.broadcast(cu_seqlens if dist.get_rank() else torch.tensor(numbers, dtype=cu_seqlens.dtype), 0)
    if dist.get_rank() == 0:
        cu_seqlens.data.copy_(torch.tensor(numbers))


def by_data(cu_seqlens, numbers):
    cu_seqlens.data.copy_(torch.tensor(numbers))


def by_pointer(cu_seqlens, numbers):
    """As numpy does, whose arrays share the memory of tensors."""
    (ctypes.c_int32 * len(numbers)).from_address(cu_seqlens.data_ptr())[:] = numbers


def refilled(write, grad):
    """The worst difference where one tensor is refilled, in evaluation and in training of layers that do not come again."""
    cu_seqlens, found = cu_seqlens_of([5, 195]), []
    (q, k, v), _ = qkv(200)
    for layer, numbers in enumerate(([0, 9, 200], [0, 150, 200], [0, 0, 200])):
        version = cu_seqlens._version
        write(cu_seqlens, numbers)
        assert cu_seqlens._version == version
        with torch.set_grad_enabled(grad):
            o = ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=layer)
        found.append(distance(o, sdpa(q, k, v, torch.tensor(numbers))))
    return max(found)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("write", [by_data, by_pointer])
def test_a_plan_follows_the_numbers(write, grad):
    assert refilled(write, grad) < 1e-10


@pytest.mark.parametrize("grad", [False, True])
def test_a_plan_follows_numbers_that_were_broadcast(two_ranks, grad):
    assert max(two_ranks.run(refilled, by_broadcast, grad)) < 1e-10


def test_keys_are_compared_by_their_numbers():
    (q, k, v), _ = qkv(200)
    of_queries, of_keys = cu_seqlens_of([5, 195]), cu_seqlens_of([5, 195])
    ours.attention(q, k, v, of_queries, of_keys)
    by_pointer(of_keys, [0, 9, 200])
    with pytest.raises(ValueError, match="cu_seqlens_q and cu_seqlens_k differ"):
        ours.attention(q, k, v, of_queries, of_keys)


def written_after_planning():
    """A buffer that the loader refills for the next batch, while this one is to be trained."""
    buffer = cu_seqlens_of([5, 195])
    (q, k, v), _ = qkv(200)

    def loader():
        for middle in (5, 60, 90):
            by_pointer(buffer, [0, middle, 200])
            yield {"cu_seq_lens_q": buffer}

    with pytest.raises(ValueError, match="cu_seqlens_q was written to after plan_ahead had planned it"):
        for batch in ours.plan_ahead(loader()):
            ours.attention(q, k, v, batch["cu_seq_lens_q"], batch["cu_seq_lens_q"], layer=0)


def test_a_plan_ahead_of_other_numbers_is_refused():
    with Ranks(2) as ranks:
        ranks.run(written_after_planning)


# Scales, kinds of layers, and groups.


def resources():
    """Threads and descriptors of this process, and keys of the store."""
    of = "/proc/self/task", "/proc/self/fd"
    keys = dist.distributed_c10d._get_default_store().num_keys() if dist.is_initialized() else 0
    return [len(os.listdir(one)) for one in of] + [keys]


def annealed(first, count):
    """The worst difference over so many forwards with as many scales, of one layer and of one plan."""
    lengths = [[9], [40]][dist.get_rank()] if dist.is_initialized() else [9]
    (q, k, v), _ = qkv(sum(lengths), head_dim=8)
    cu_seqlens = cu_seqlens_of(lengths)
    worst_one = 0
    for i in range(count):
        scale = 0.1 + (first + i) * 1e-3
        o = ours.attention(q, k, v, cu_seqlens, cu_seqlens, softmax_scale=scale, layer=0)
        if i % 50 == 0:
            worst_one = max(worst_one, distance(o, sdpa(q, k, v, cu_seqlens, softmax_scale=scale)))
    return worst_one, resources()


def test_any_number_of_scales():
    with torch.no_grad():
        annealed(0, 100)
        (_, before), (found, after) = annealed(100, 1), annealed(101, 2000)
    assert found < 1e-10 and after == before


def test_any_number_of_scales_on_two_ranks(two_ranks):
    before = two_ranks.run(annealed, 0, 5)
    for (found, after), (_, start) in zip(two_ranks.run(annealed, 5, 200), before):
        assert found < 1e-10 and after == start


def kinds():
    """Layers of many shapes, forward and backward, in turns; those that are forgotten come again."""
    mine, found = [[30], [7, 200]][dist.get_rank()], []
    cu_seqlens, under_way = cu_seqlens_of(mine), []
    before = None
    for turn in range(2):
        for number in range(45):
            heads, head_dim = 1 + number % 9, 8 * (1 + number // 9)
            inputs, d_o = qkv(sum(mine), heads, heads, head_dim, (torch.float64, torch.float32)[number % 2])
            o = ours.attention(*inputs, cu_seqlens, cu_seqlens)
            under_way.append((o, inputs, d_o))
            if len(under_way) > 30:  # backward of a kind that was forgotten meanwhile
                o, inputs, d_o = under_way.pop(0)
                want = torch.autograd.grad(sdpa(*inputs, cu_seqlens), inputs, d_o)
                found.append(worst(torch.autograd.grad(o, inputs, d_o), want))
        before = before or resources()
    sent = group.statistics().sent_bytes
    return max(found), before, resources(), sent


def test_any_number_of_kinds(two_ranks):
    for found, before, after, sent in two_ranks.run(kinds):
        assert found < 1e-5 and sent > 0
        assert after[1:] == before[1:] and after[0] <= before[0]


def short_lived_groups(count):
    """Groups of all ranks and of some, each used for a forward and a backward."""
    lengths = [[30], [7, 90]][dist.get_rank()] if dist.get_rank() < 2 else [5]
    inputs, d_o = qkv(sum(lengths), head_dim=8)
    cu_seqlens = cu_seqlens_of(lengths)
    for i in range(count):
        ranks = [0, 1] if i % 2 else [0, 1, 2]
        part = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            o = ours.attention(*inputs, cu_seqlens, cu_seqlens, group=part)
            o.backward(d_o)
            assert distance(o, sdpa(*inputs, cu_seqlens)) < 1e-10
            del o
        dist.destroy_process_group(part)
        del part
    return resources()


def without_attention(count):
    """What PyTorch's own groups leave behind in the store."""
    before = resources()
    for i in range(count):
        part = dist.new_group([0, 1] if i % 2 else [0, 1, 2])
        if dist.get_rank(part) >= 0:
            dist.barrier(part)
        dist.destroy_process_group(part)
    return resources()[-1] - before[-1]


def grown(count):
    """By how much threads, descriptors and keys of the store grow, beyond PyTorch's own keys."""
    dist.barrier()
    of_pytorch = without_attention(count)
    dist.barrier()
    before = short_lived_groups(4)
    dist.barrier()
    after = short_lived_groups(count)
    dist.barrier()
    threads, descriptors, keys = (b - a for a, b in zip(before, after))
    return threads, descriptors, keys, of_pytorch


def test_destroyed_groups_leave_nothing_behind():
    with Ranks(3) as ranks:
        for threads, descriptors, keys, of_pytorch in ranks.run(grown, 16):
            assert threads <= 0 and descriptors <= 0, (threads, descriptors)
            assert keys <= of_pytorch + 40, (keys, of_pytorch)


ENDS = """if True:
    import os, sys, time
    import torch, torch.distributed as dist, distca
    rank, first = int(sys.argv[1]), sys.argv[2] == "first"
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="env://")
    cu_seqlens = torch.tensor([0, 300 - 290 * rank])
    q = torch.ones(int(cu_seqlens[-1]), 2, 8, requires_grad=True)
    distca.attention(q, q, q, cu_seqlens, cu_seqlens, layer=0).sum().backward()
    if rank == 1 and not first:
        time.sleep(3)  # rank 0, and with it the store, ends meanwhile
    dist.destroy_process_group()
    if rank == 1 and first:
        time.sleep(3)
"""


@pytest.mark.parametrize("when", ["first", "later"])
def test_a_program_ends_silently_though_rank_0_has_ended(when):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen([sys.executable, "-c", ENDS, str(rank), when], env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    for process in processes:
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0 and "C++" not in said and "distca" not in said, said
