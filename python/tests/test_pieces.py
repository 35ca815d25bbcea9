"""Attention of documents that are cut over ranks: O, gradients and bits are those of one process."""

import random

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, distance, gradients, qkv, sdpa, tokens_of, worst
from rank_processes import Ranks
from torch.utils.checkpoint import checkpoint

import distca as ours
from distca import _group as group
from distca import pieces as parts
from distca.plan import Shape, plan_batch

LENGTHS = [611, 5, 1, 1300, 0, 77, 250]
CU_SEQLENS = cu_seqlens_of(LENGTHS)
TOKENS = sum(LENGTHS)


def crumbs(cu_seqlens, seed):
    """Ranges of at most 200 tokens that lie anywhere, some ranks with few of them."""
    drawn, ranges, begin = random.Random(seed), [[] for _ in range(dist.get_world_size())], 0
    while begin < TOKENS:
        end = min(TOKENS, begin + drawn.randint(1, 200))
        drawn.choice(ranges).append((begin, end))
        begin = end
    for of_rank in ranges:
        drawn.shuffle(of_rank)
    return parts.of_ranges(cu_seqlens, ranges[dist.get_rank()])


def planned(cu_seqlens):
    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=16)
    return parts.of_ranges(cu_seqlens, plan_batch(cu_seqlens, dist.get_world_size(), shape).tokens[dist.get_rank()])


LAYOUTS = {
    "contiguous": parts.contiguous,
    "zigzag": parts.zigzag,
    "crumbs": lambda cu_seqlens: crumbs(cu_seqlens, 1),
    "other crumbs": lambda cu_seqlens: crumbs(cu_seqlens, 2),
    "planned": planned,
    "all on the last rank": lambda cu: parts.of_ranges(cu, [(0, TOKENS)] if dist.get_rank() == dist.get_world_size() - 1 else []),
}


def compare(layout, dtype, kv_heads, window_left):
    """The worst difference of O, dQ, dK, dV to one process; whether O has its bits; the bytes that were sent."""
    mine = LAYOUTS[layout](CU_SEQLENS)
    at = parts.indices(mine, CU_SEQLENS)
    whole, d_o = qkv(TOKENS, kv_heads=kv_heads, dtype=dtype)
    inputs = [x.detach()[at].requires_grad_() for x in whole]
    before = group.statistics().sent_bytes
    o = ours.attention(*inputs, mine, mine, window_size=(window_left, 0), layer=0)
    got = [o, *torch.autograd.grad(o, inputs, d_o[at])]
    with torch.no_grad():
        alone = ours.attention(*whole, CU_SEQLENS, CU_SEQLENS, window_size=(window_left, 0))
    exact = [x.detach().double().requires_grad_() for x in whole]
    reference = sdpa(*exact, CU_SEQLENS, window_left)
    want = [x[at] for x in (reference, *torch.autograd.grad(reference, exact, d_o.double()))]
    return worst(got, want, least=1), torch.equal(o, alone[at]), group.statistics().sent_bytes - before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype, kv_heads, window_left", [
    (torch.float64, 2, -1), (torch.float64, 4, 100), (torch.float32, 1, -1), (torch.bfloat16, 2, -1), (torch.bfloat16, 4, 64),
], ids=str)
def test_equals_one_process(two_ranks, three_ranks, layout, dtype, kv_heads, window_left):
    bound = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for ranks in (two_ranks, three_ranks):
        found = ranks.run(compare, layout, dtype, kv_heads, window_left)
        assert max(difference for difference, *_ in found) <= bound, found
        assert dtype == torch.float64 or all(same for _, same, _ in found)
        assert sum(sent for *_, sent in found) > 0, "nothing was balanced"


@pytest.mark.parametrize("size", [4, pytest.param(8, marks=pytest.mark.full)])
def test_more_ranks(size):
    with Ranks(size) as ranks:
        for layout, dtype in (("crumbs", torch.float64), ("zigzag", torch.bfloat16), ("planned", torch.float32)):
            found = ranks.run(compare, layout, dtype, 2, -1)
            assert max(difference for difference, *_ in found) <= {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 1e-2)
            assert dtype == torch.float64 or all(same for _, same, _ in found)


def model_of(layout, wrap):
    """The worst difference of a model's summed gradients to one process, and forwards and plans of its three layers."""
    def with_checkpoints(layer, *inputs):
        return checkpoint(layer, *inputs, use_reentrant=False)

    mine = LAYOUTS[layout](CU_SEQLENS)
    model = Model(balanced, **({"wrap": with_checkpoints} if wrap else {}))
    before = group.statistics()
    model(tokens_of(LENGTHS)[parts.indices(mine, CU_SEQLENS)], mine).backward()
    after = group.statistics()
    got = gradients(model)
    for gradient in got:
        dist.all_reduce(gradient)
    one = Model(sdpa)
    one(tokens_of(LENGTHS), CU_SEQLENS).backward()
    return worst(got, gradients(one)), after.forwards - before.forwards, after.plans - before.plans


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "checkpointed"])
def test_layers_of_a_forward_share_one_plan(two_ranks, wrap):
    for difference, forwards, plans in two_ranks.run(model_of, "crumbs" if wrap else "zigzag", wrap):
        assert difference < 1e-10 and forwards == 3 and plans <= 1


def without_gradients():
    """Evaluation of pieces, twice, the second one in inference mode; O and LSE."""
    mine = parts.zigzag(CU_SEQLENS)
    at = parts.indices(mine, CU_SEQLENS)
    whole = [x.detach() for x in qkv(TOKENS)[0]]
    want, lse, _ = ours.flash_attn_varlen_func(*whole, CU_SEQLENS, CU_SEQLENS, 0, 0, causal=True, return_attn_probs=True)
    differences = []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            q, k, v = (x[at] for x in whole)
            o, mine_lse, _ = ours.flash_attn_varlen_func(q, k, v, mine, mine, 0, 0, causal=True, return_attn_probs=True, layer=0)
        differences += [distance(o, want[at]), distance(mine_lse, lse[:, at])]
    return max(differences)


def test_all_ranks_compute_pieces_with_gradients_off(two_ranks):
    assert max(two_ranks.run(without_gradients)) < 1e-12


def in_turns_ahead(ahead):
    """Two nano-batches of pieces in a ping-pong, planned ahead or not."""
    halves = [cu_seqlens_of(LENGTHS[:3]), cu_seqlens_of(LENGTHS[3:])]
    x = tokens_of(LENGTHS)
    of_halves = [x[: halves[0][-1]], x[halves[0][-1]:]]
    batches = [[parts.zigzag(halves[0]), parts.contiguous(halves[1])] for _ in range(3)]
    model = Model(balanced)
    for batch in ours.plan_ahead(batches, list) if ahead else batches:
        model.zero_grad()
        bodies = [lambda i=i: model(of_halves[i][parts.indices(batch[i], halves[i])], batch[i]) for i in range(2)]
        sum(ours.ping_pong(*bodies)).backward()
    got = gradients(model)
    for gradient in got:
        dist.all_reduce(gradient)
    one = Model(sdpa)
    one(x, CU_SEQLENS).backward()
    return worst(got, gradients(one))


@pytest.mark.parametrize("ahead", [False, True], ids=["planned", "planned ahead"])
def test_pieces_take_turns_and_are_planned_ahead(two_ranks, ahead):
    assert max(two_ranks.run(in_turns_ahead, ahead)) < 1e-10


def refused(of_ranks):
    seg = torch.tensor(of_ranks[dist.get_rank()], dtype=torch.int64).view(-1, 3)
    inputs, _ = qkv(int((seg[:, 2] - seg[:, 1]).sum()))
    try:
        ours.attention(*inputs, seg, seg)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.mark.parametrize("of_ranks, line", [
    ([[[7, 0, 512]], [[7, 640, 700]]], "document 7: tokens 512 to 640 lie on no rank, and rank 1 has those from 640 on"),
    ([[[7, 0, 512]], [[7, 500, 700]]], "document 7: tokens 500 to 512 lie on rank 0 and on rank 1"),
    ([[[-1, 2, 9]], []], "document -1: tokens 0 to 2 lie on no rank, and rank 0 has those from 2 on"),
])
def test_what_is_no_whole_document_is_named(two_ranks, of_ranks, line):
    assert all(line in found for found in two_ranks.run(refused, of_ranks))


def mixed():
    cu_seqlens = cu_seqlens_of([40]) if dist.get_rank() == 0 else torch.tensor([[0, 0, 40]])
    try:
        ours.attention(*qkv(40)[0], cu_seqlens, cu_seqlens)
    except RuntimeError as error:
        return str(error).splitlines()[0]


def test_all_ranks_give_pieces_or_none_does(two_ranks):
    line = "rank 1 gives pieces of documents, rank 0 whole ones: all ranks give pieces, or none does"
    assert all(line in found for found in two_ranks.run(mixed))


@pytest.mark.parametrize("seg, line", [
    ([[0, 3, 2]], "a piece of document 0 has tokens 3 to 2: 0 or more, and ascending"),
    ([[0, -1, 2]], "a piece of document 0 has tokens -1 to 2: 0 or more, and ascending"),
    ([[0, 0, 3], [1, 0, 3]], "the pieces of cu_seqlens_q have 6 tokens, q has 5"),
    ([[0, 5]], "cu_seqlens_q has shape [1, 2] of torch.int64: [documents + 1] of integers, or [pieces, 3]"),
    ([[[0, 5, 6]]], "cu_seqlens_q has shape [1, 1, 3] of torch.int64: [documents + 1] of integers, or [pieces, 3]"),
])
def test_what_are_no_pieces_gets_one_line(seg, line):
    seg = torch.tensor(seg)
    inputs, _ = qkv(5)
    with pytest.raises(ValueError) as raised:
        ours.attention(*inputs, seg, seg)
    assert str(raised.value) == line
    assert ours.can_run(*inputs, seg, seg).reason == line


def test_one_process_may_give_pieces():
    (q, k, v), d_o = qkv(9)
    seg, cu_seqlens = torch.tensor([[4, 3, 5], [2, 0, 4], [4, 0, 3]]), torch.tensor([0, 5, 9])
    whole = torch.tensor([3, 4, 5, 6, 7, 8, 0, 1, 2])  # document 4 comes first
    o = ours.attention(q, k, v, seg, seg)
    order = whole.argsort()
    want = sdpa(q[order], k[order], v[order], cu_seqlens)
    assert distance(o[order], want) < 1e-12


def test_pieces_of_ranges():
    seg = parts.of_ranges([0, 5, 5, 9], [(3, 4), (4, 7), (0, 3), (9, 9), (2, 2)])
    assert seg.tolist() == [[0, 3, 5], [2, 0, 2], [0, 0, 3]]
    assert parts.indices(seg, [0, 5, 5, 9]).tolist() == [3, 4, 5, 6, 0, 1, 2]
    assert parts.position_ids(seg).tolist() == [3, 4, 0, 1, 0, 1, 2]
    assert parts.of_ranges([0], []).shape == (0, 3)
    for ranges in ([(3, 2)], [(0, 10)], [(-1, 2)]):
        with pytest.raises(ValueError, match="are no range of a batch of 9 tokens"):
            parts.of_ranges([0, 5, 9], ranges)
    with pytest.raises(ValueError, match="cu_seqlens begins with 0 and never descends"):
        parts.contiguous([1, 2])


def laid_out(name):
    return LAYOUTS[name](torch.tensor([0, 8, 20])).tolist()


def test_layouts_of_other_frameworks(two_ranks):
    assert two_ranks.run(laid_out, "contiguous") == [[[0, 0, 8], [1, 0, 2]], [[1, 2, 12]]]
    assert two_ranks.run(laid_out, "zigzag") == [[[0, 0, 2], [0, 6, 8], [1, 0, 3], [1, 9, 12]], [[0, 2, 6], [1, 3, 9]]]
