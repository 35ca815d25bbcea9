"""O and gradients of ranks against PyTorch's own attention, document by document."""

import datetime
import threading
import time

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, distance, gradients, qkv, sdpa, tokens_of, worst
from rank_processes import Ranks, short_timeout_s

import distca as ours
from distca import _group as group

BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}
LENGTHS = {
    "odd": [[13, 301, 5, 77], [129, 3], [611]],
    "one token": [[1, 1, 700, 1], [1], [257, 1]],
    "an empty rank": [[900, 37], [], [131]],
    "a long document": [[2500], [31, 2], [200]],
    "empty documents": [[0, 40, 0, 500], [0], [90, 0]],
}


def compare(lengths, dtype, kv_heads, window_left, softmax_scale):
    """The worst difference of O, dQ, dK, dV, and the bytes that were sent."""
    mine = lengths[dist.get_rank()]
    inputs, d_o = qkv(sum(mine), kv_heads=kv_heads, dtype=dtype, seed=dist.get_rank())
    cu_seqlens = cu_seqlens_of(mine)
    before = group.statistics().sent_bytes
    o = ours.attention(*inputs, cu_seqlens, cu_seqlens, max(mine, default=0), max(mine, default=0), softmax_scale,
                       window_size=(window_left, 0))
    got = [o, *torch.autograd.grad(o, inputs, d_o)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    reference = sdpa(*exact, cu_seqlens, window_left, softmax_scale)
    want = [reference, *torch.autograd.grad(reference, exact, d_o.double())]
    assert all(a.shape == b.shape and a.dtype == dtype for a, b in zip(got, want, strict=True))
    # Of one-token documents, dQ and dK are zero.
    return worst(got, want, least=1), group.statistics().sent_bytes - before


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(
    "dtype, kv_heads, window_left, softmax_scale",
    [(torch.float64, 2, -1, None), (torch.float64, 4, 100, 0.3), (torch.float32, 4, -1, None), (torch.float32, 1, 64, None),
     (torch.bfloat16, 2, -1, None)],
    ids=str,
)
def test_equals_sdpa_of_each_document(two_ranks, three_ranks, lengths, dtype, kv_heads, window_left, softmax_scale):
    for ranks in (two_ranks, three_ranks):
        found = ranks.run(compare, LENGTHS[lengths][: ranks.size], dtype, kv_heads, window_left, softmax_scale)
        assert max(difference for difference, _ in found) <= BOUND[dtype], found
        assert sum(sent for _, sent in found) > 0, "nothing was balanced"


def compare_models(lengths, layers):
    mine = lengths[dist.get_rank()]
    results, done = [], []
    for attend in (sdpa, balanced):
        before = group.statistics()
        model = Model(attend, layers)
        model(tokens_of(mine), cu_seqlens_of(mine)).backward()
        after = group.statistics()
        done.append((after.forwards - before.forwards, after.plans - before.plans))
        results.append(gradients(model))
    return worst(*reversed(results)), done


def test_layers_of_a_forward_share_one_plan(two_ranks):
    for difference, done in two_ranks.run(compare_models, [[351, 20], [90]], 4):
        assert difference < 1e-10
        assert done == [(0, 0), (4, 1)]
    for _, done in two_ranks.run(compare_models, [[351, 20], [90]], 2):  # of the same lengths as before
        assert done == [(0, 0), (2, 0)]


def nobody_has_tokens():
    inputs, d_o = qkv(0)
    cu_seqlens = cu_seqlens_of([])
    o = ours.attention(*inputs, cu_seqlens, cu_seqlens)
    return [list(x.shape) for x in (o, *torch.autograd.grad(o, inputs, d_o))]


def test_no_rank_may_hold_tokens(two_ranks):
    assert two_ranks.run(nobody_has_tokens) == [[[0, 4, 16], [0, 4, 16], [0, 2, 16], [0, 2, 16]]] * 2


def overlapped(lengths):
    """Two nano-batches whose messages travel while the other one computes."""
    rank, differences = dist.get_rank(), []
    cu_seqlens = [cu_seqlens_of(one[rank]) for one in lengths]
    made = [qkv(sum(one[rank]), seed=10 * i + rank) for i, one in enumerate(lengths)]
    handles = [ours.dispatch(*inputs, cu, cu, layer=0) for (inputs, _), cu in zip(made, cu_seqlens)]
    between = torch.ones(50, 50) @ torch.ones(50, 50)
    handles = [ours.core_attention(handle) for handle in handles]
    between = between @ between
    os = [ours.combine(handle) for handle in handles]
    sum((o * d_o).sum() for o, (_, d_o) in zip(os, made)).backward()
    for (inputs, d_o), cu, o in zip(made, cu_seqlens, os):
        reference = sdpa(*inputs, cu)
        want = torch.autograd.grad(reference, inputs, d_o)
        differences.append(worst([o, *(x.grad for x in inputs)], [reference, *want]))
    return max(differences)


def test_work_may_lie_between_the_parts(two_ranks):
    assert max(two_ranks.run(overlapped, [[[400, 3], [70]], [[33], [5, 811]]])) < 1e-10


PARTS = ("dispatch", "core_attention", "combine")
TURNS = [f"{rank} {way} {part}" for way, parts in (("forward", PARTS), ("backward", PARTS[::-1]))
         for part, ranks in zip(parts, ((0, 1), (1, 0), (0, 1))) for rank in ranks]


def in_turns(lengths, port):
    """The worst difference of a layer whose parts come one at a time, each when the one before it has returned."""
    rank = dist.get_rank()
    store = dist.PrefixStore(str(lengths), dist.TCPStore("127.0.0.1", port, is_master=False))

    def begin(turn):
        if at := TURNS.index(f"{rank} {turn}"):
            store.wait([TURNS[at - 1]], datetime.timedelta(minutes=10))

    cu_seqlens, (inputs, d_o) = cu_seqlens_of(lengths[rank]), qkv(sum(lengths[rank]), seed=rank)
    made = ours.attention(*inputs, cu_seqlens, cu_seqlens, layer=0)  # the ranks meet and make a plan
    for name in PARTS:
        begin(f"forward {name}")
        made = ours.dispatch(*inputs, cu_seqlens, cu_seqlens, layer=1) if name == "dispatch" else getattr(ours, name)(made)
        store.set(f"{rank} forward {name}", "")
        node = (made if name == "combine" else made._call).grad_fn
        node.register_prehook(lambda _, name=name: begin(f"backward {name}"))
        node.register_hook(lambda *_, name=name: store.set(f"{rank} backward {name}", ""))
    got = torch.autograd.grad(made, inputs, d_o)
    reference = sdpa(*inputs, cu_seqlens)
    return worst([made, *got], [reference, *torch.autograd.grad(reference, inputs, d_o)])


@pytest.mark.parametrize("lengths", [[[900], [20, 5]], [[20, 5], [900]]], ids=["rank 0 has more", "rank 1 has more"])
def test_each_part_of_a_layer_needs_only_what_came_before(two_ranks, lengths):
    """Else ping-pong hides nothing: messages travel while their sender and their receiver do something else, so a part that
    sends waits for nobody, and one that receives waits for no call of the sender behind that which sent."""
    assert max(two_ranks.run(in_turns, lengths, two_ranks.store.port)) < 1e-10


def skip_a_step(timeout_s):
    group.init(timeout_s=timeout_s, startup_timeout_s=300)
    cu_seqlens = cu_seqlens_of([300] if dist.get_rank() == 0 else [20])
    for step in range(2):
        if step == 1 and dist.get_rank() == 2:
            return "skipped"
        inputs, d_o = qkv(int(cu_seqlens[-1]))
        ours.attention(*inputs, cu_seqlens, cu_seqlens, layer=0).backward(d_o)
    return "done"


def test_a_rank_that_skips_a_step_is_named():
    with Ranks(3) as ranks:
        ranks.tell(skip_a_step, short_timeout_s(6))
        assert ranks.hear(2) == (True, "skipped")
        for rank in (0, 1):
            good, line = ranks.hear(rank)
            assert not good and "rank 2" in line.splitlines()[0].removeprefix(f"rank {rank}: "), line


def disagree(what):
    rank = dist.get_rank()
    cu_seqlens = cu_seqlens_of([64])
    (q, k, v), _ = qkv(64, kv_heads=1 if what == "heads" and rank == 1 else 2)
    ours.attention(q, k, v, cu_seqlens, cu_seqlens, window_size=(32 if what == "window" and rank == 1 else -1, -1))


def disagree_later():
    """Of the softmax_scale of another layer than the first, which no plan depends on."""
    (q, k, v), _ = qkv(64)
    cu_seqlens = cu_seqlens_of([64])
    ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=0)
    ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=1, softmax_scale=0.5 + 0.25 * dist.get_rank())


def test_a_rank_with_another_scale_is_named(two_ranks):
    two_ranks.tell(disagree_later)
    for rank in range(2):
        good, said = two_ranks.hear(rank)
        assert not good and "rank 1 calls attention with softmax_scale = 0.75, rank 0 with 0.5" in said.splitlines()[0], said


@pytest.mark.parametrize("what, line", [("heads", "rank 1 calls attention with num_kv_heads = 1, rank 0 with 2"),
                                        ("window", "rank 1 calls attention with window_left = 32, rank 0 with -1")])
def test_a_rank_that_calls_another_layer_is_named(two_ranks, what, line):
    two_ranks.tell(disagree, what)
    for rank in range(2):
        good, said = two_ranks.hear(rank)
        assert not good and line in said.splitlines()[0], said


def of_a_subgroup():
    rank = dist.get_rank()
    if rank == 2 and torch.__version__ < "2.14":  # from there on, new_group itself waits for ever then
        dist.new_group([rank], use_local_synchronization=True)  # it knows more groups than the others
    part = dist.new_group([0, 2])
    if rank == 1:
        try:
            ours.attention(*qkv(5)[0], cu_seqlens_of([5]), cu_seqlens_of([5]), group=part)
        except ValueError as error:
            return str(error)
    mine = [500] if rank == 0 else [7]
    (q, k, v), _ = qkv(sum(mine))
    cu_seqlens = cu_seqlens_of(mine)
    return distance(ours.attention(q, k, v, cu_seqlens, cu_seqlens, group=part), sdpa(q, k, v, cu_seqlens))


def test_a_group_of_some_ranks(three_ranks):
    found = three_ranks.run(of_a_subgroup)
    assert found[1] == "this rank is not in the group that attention was given"
    assert max(found[0], found[2]) < 1e-10


def open_badly():
    ours.attention(*qkv(3)[0], cu_seqlens_of([3]), cu_seqlens_of([3]))
    with pytest.raises(ValueError, match="the group is open: call distca.init before the first attention, and once"):
        group.init()
    with pytest.raises(ValueError, match="timeout_s = 0, startup_timeout_s = 300.0: seconds, above 0"):
        group.init(dist.new_group([0, 1]), timeout_s=0)


def test_a_group_is_opened_once(two_ranks):
    two_ranks.run(open_badly)


def begin_again(port):
    """Attention before and after the program destroys its process group, whose names come again."""
    sent, rank = [], dist.get_rank()
    for again in range(2):
        cu_seqlens = cu_seqlens_of([900] if rank == 0 else [20])
        inputs, _ = qkv(int(cu_seqlens[-1]))
        ours.attention(*inputs, cu_seqlens, cu_seqlens)
        sent.append(group.statistics().sent_bytes)
        dist.destroy_process_group()
        store = dist.PrefixStore(f"again {again}", dist.TCPStore("127.0.0.1", port, is_master=False))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return sent[0] == sent[1] > 0


def test_a_program_may_make_its_process_group_anew():
    with Ranks(2) as ranks:
        assert ranks.run(begin_again, ranks.store.port) == [True, True]


def wait_for_a_late_rank():
    """How often another thread of rank 0 runs in half a second of sleep, and while attention waits a second for rank 1:
    in forward, and in backward."""
    ticks, ended, counts = [], threading.Event(), []
    thread = threading.Thread(target=lambda: [ticks.append(0) for _ in iter(lambda: ended.wait(0.01), True)])
    thread.start()
    cu_seqlens = cu_seqlens_of([400] if dist.get_rank() == 0 else [2])
    inputs, d_o = qkv(int(cu_seqlens[-1]))
    before = len(ticks)
    time.sleep(0.5)
    counts.append(len(ticks) - before)
    for part in (lambda: ours.attention(*inputs, cu_seqlens, cu_seqlens), lambda: torch.autograd.grad(o, inputs, d_o)):
        dist.barrier()  # both ranks have come
        if dist.get_rank() == 1:
            time.sleep(1)
        before = len(ticks)
        o = part()
        counts.append(len(ticks) - before)
    ended.set()
    thread.join()
    return counts


def test_other_threads_run_while_a_rank_waits(two_ranks):
    asleep, *waiting = two_ranks.run(wait_for_a_late_rank)[0]
    assert min(waiting) > asleep / 4
