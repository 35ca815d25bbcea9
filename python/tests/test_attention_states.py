"""What belongs to one forward: checkpointing, several forwards, evaluation in between. Every case counts what was sent."""

import functools
import gc

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, gradients, qkv, sdpa, tokens_of, worst
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import distca as ours
from distca import _group as group
from distca._ops import ops

LENGTHS = [[351, 20], [90, 1]]
LAYERS = 3


def matrices_are_kept(context, operator, *arguments, **keywords):
    kept = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def attention_is_kept(context, operator, *arguments, **keywords):
    kept = operator in (ops.dispatch.default, ops.combine.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def all_is_kept(context, operator, *arguments, **keywords):
    return CheckpointPolicy.MUST_SAVE


def whole(layer, *inputs):
    return checkpoint(layer, *inputs, use_reentrant=False)


def selective(policy):
    return lambda layer, *inputs: checkpoint(
        layer, *inputs, use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, policy))


def nested(layer, *inputs):
    return checkpoint(lambda *given: whole(layer, *given), *inputs, use_reentrant=False)


WRAPS = {"none": lambda layer, *inputs: layer(*inputs), "whole": whole, "nested": nested,
         "keeps matrices": selective(matrices_are_kept), "keeps attention": selective(attention_is_kept),
         "keeps all": selective(all_is_kept)}


def skips_in_python(q, k, v, cu_seqlens, layer, kept):
    """The naive way: Python knows O of a layer that comes again, and calls no operator."""
    if torch._C._current_graph_task_id() == -1:
        kept[layer] = balanced(q, k, v, cu_seqlens, layer)
    return kept[layer]


def train(wrap, attend=balanced, evaluates=False):
    """The worst difference of a gradient, and (forwards, backwards, bytes sent) of a step."""
    rank = dist.get_rank()
    x, cu_seqlens = tokens_of(LENGTHS[rank]), cu_seqlens_of(LENGTHS[rank])
    reference = Model(sdpa, LAYERS)
    reference(x, cu_seqlens).backward()
    model = Model(attend, LAYERS, WRAPS[wrap])
    before = group.statistics()
    loss = model(x, cu_seqlens)
    if evaluates:
        for _ in range(2 * rank):  # another rank, another number of times
            with torch.no_grad():
                assert abs(model(x, cu_seqlens) - loss) < 1e-9
    loss.backward()
    after = group.statistics()
    done = (after.forwards - before.forwards, after.backwards - before.backwards, after.sent_bytes - before.sent_bytes)
    return worst(gradients(model), gradients(reference)), done


@pytest.mark.parametrize("wrap", [name for name in WRAPS if name != "none"])
def test_checkpointing_neither_sends_nor_computes_twice(two_ranks, wrap):
    plain = two_ranks.run(train, "none")
    for (difference, done), (_, usual) in zip(two_ranks.run(train, wrap), plain):
        assert difference < 1e-10
        assert done == usual and done[:2] == (LAYERS, LAYERS) and done[2] > 0


def train_naively(wrap):
    try:
        return train(wrap, functools.partial(skips_in_python, kept={}))[0]
    except RuntimeError as error:
        return str(error)


def test_the_naive_way_spoils_selective_checkpointing(two_ranks):
    for found in two_ranks.run(train_naively, "keeps matrices"):
        assert isinstance(found, str) or found > 1e-3


@pytest.mark.parametrize("wrap", ["none", "whole", "keeps matrices"])
def test_ranks_evaluate_between_forward_and_backward(two_ranks, wrap):
    plain = two_ranks.run(train, wrap)
    for (difference, done), (_, usual) in zip(two_ranks.run(train, wrap, balanced, True), plain):
        assert difference < 1e-10 and done == usual


def two_forwards(wrap, one_object):
    """Both forwards, then both backwards, of one model: gradients add up."""
    rank = dist.get_rank()
    lengths = [LENGTHS[rank], LENGTHS[rank] if one_object else [5, 200 * rank, 77]]
    cu_seqlens = [cu_seqlens_of(one) for one in lengths]
    if one_object:
        cu_seqlens[1] = cu_seqlens[0]
    results = []
    for attend, wraps in ((sdpa, WRAPS["none"]), (balanced, WRAPS[wrap])):
        model = Model(attend, LAYERS, wraps)
        losses = [model(tokens_of(one, seed), cu) for seed, (one, cu) in enumerate(zip(lengths, cu_seqlens))]
        losses[0].backward()
        losses[1].backward()
        results.append(gradients(model))
    return worst(*results)


@pytest.mark.parametrize("wrap, one_object", [("none", False), ("none", True), ("whole", False), ("keeps matrices", False)])
def test_two_forwards_before_their_backwards(two_ranks, wrap, one_object):
    assert max(two_ranks.run(two_forwards, wrap, one_object)) < 1e-10


def test_two_forwards_that_cannot_be_told_apart_are_refused(two_ranks):
    two_ranks.tell(two_forwards, "whole", True)
    for rank in range(2):
        good, said = two_ranks.hear(rank)
        assert not good and "give each forward a cu_seqlens_q of its own" in said


def steps(same_object):
    """Losses go on while a rank keeps its tensor and the others bring new ones: all exchange lengths every forward."""
    rank = dist.get_rank()
    kept = cu_seqlens_of(LENGTHS[rank])
    differences = []
    for step in range(3):
        lengths = LENGTHS[rank] if rank == 0 else [30 * step, 400]
        cu_seqlens = kept if rank == 0 and same_object else cu_seqlens_of(lengths)
        pair = []
        for attend in (sdpa, balanced):
            model = Model(attend, LAYERS)
            loss = model(tokens_of(lengths, step), cu_seqlens)  # its graph outlives the step
            loss.backward()
            pair.append(gradients(model))
        differences.append(worst(*pair))
    return max(differences)


@pytest.mark.parametrize("same_object", [True, False])
def test_lengths_are_exchanged_every_forward(two_ranks, same_object):
    assert max(two_ranks.run(steps, same_object)) < 1e-10


def unnamed(wrap):
    model = Model(balanced, LAYERS, WRAPS[wrap], named=False)
    before = group.statistics()
    try:
        model(tokens_of(LENGTHS[dist.get_rank()]), cu_seqlens_of(LENGTHS[dist.get_rank()])).backward()
    except ValueError as error:
        return str(error), group.statistics() == before
    return worst(gradients(model), gradients(reference_model())), True


def reference_model():
    model = Model(sdpa, LAYERS)
    model(tokens_of(LENGTHS[dist.get_rank()]), cu_seqlens_of(LENGTHS[dist.get_rank()])).backward()
    return model


def test_without_a_layer_checkpointing_is_refused_before_a_message(two_ranks):
    for difference, _ in two_ranks.run(unnamed, "none"):
        assert difference < 1e-10
    for wrap in ("whole", "keeps matrices"):
        for line, nothing_sent in two_ranks.run(unnamed, wrap):
            assert line == "attention is under activation checkpointing and has no layer=: give each layer its number"
            assert nothing_sent


def reentrant():
    rank = dist.get_rank()
    model = Model(balanced, LAYERS, lambda layer, *inputs: checkpoint(layer, *inputs, use_reentrant=True))
    before = group.statistics()
    loss = model(tokens_of(LENGTHS[rank]).requires_grad_(), cu_seqlens_of(LENGTHS[rank]))
    with pytest.raises(ValueError, match="use_reentrant=False"):
        loss.backward()
    return group.statistics() == before


def test_reentrant_checkpointing_is_refused_before_a_message(two_ranks):
    assert two_ranks.run(reentrant) == [True, True]


def dropped_and_retained():
    """A forward without backward, then a graph that goes backward twice; what it kept is freed with its graph."""
    mine = LENGTHS[dist.get_rank()]
    cu_seqlens = cu_seqlens_of(mine)
    inputs, d_o = qkv(sum(mine))
    ours.attention(*inputs, cu_seqlens, cu_seqlens, layer=0)
    o = ours.attention(*inputs, cu_seqlens, cu_seqlens, layer=0)
    want = torch.autograd.grad(sdpa(*inputs, cu_seqlens), inputs, d_o)
    twice = [torch.autograd.grad(o, inputs, d_o, retain_graph=retain) for retain in (True, False)]
    gc.collect()
    return max(worst(got, want) for got in twice)


def test_forwards_may_be_dropped_and_graphs_retained(two_ranks):
    assert max(two_ranks.run(dropped_and_retained)) < 1e-10


def written_to():
    mine = LENGTHS[dist.get_rank()]
    inputs, d_o = qkv(sum(mine))
    o = ours.attention(*inputs, cu_seqlens_of(mine), cu_seqlens_of(mine))
    o.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        o.backward(d_o)


def test_an_output_that_was_written_to_has_no_backward(two_ranks):
    two_ranks.run(written_to)
