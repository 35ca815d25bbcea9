"""Traps of attention that sends messages. Each is shown to be one: a small naive way fails where ours does not.

Others stand beside what they concern: selective checkpointing (test_attention_states.py), state that coroutines share
(test_ping_pong.py), and FSDP2's resharding (test_ping_pong_wrapped.py).
"""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, gradients, qkv, sdpa, tokens_of, worst
from rank_processes import short_timeout_s
from torch.utils.checkpoint import checkpoint

import distca as ours

LENGTHS = [[351, 20], [90, 1]]
LATE_S = 0.5  # that rank 1 takes before it receives


def is_recomputed():
    return torch._C._current_graph_task_id() != -1


def be_late():
    if dist.get_rank() == 1:
        time.sleep(LATE_S)


def say_dropped():
    """Of rank 0, once nothing holds its message any more, unless it is kept."""
    if dist.get_rank() == 0:
        dist.distributed_c10d._get_default_store().set("dropped", "")


def wait_until_dropped():
    if dist.get_rank() == 1:
        store = dist.distributed_c10d._get_default_store()
        store.wait(["dropped"])
        store.delete_key("dropped")


def whole(layer, *inputs):
    return checkpoint(layer, *inputs, use_reentrant=False)


# Dropped sends. Gloo forgets a message whose Work nobody keeps, unless the other rank is receiving it already.


def naively(run, keeps, deadline_s):
    """What run(other rank, a group of Gloo's, keeps) raises on this rank, "" if nothing."""
    messages = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=deadline_s))
    try:
        run(1 - dist.get_rank(), messages, keeps)
        return ""
    except RuntimeError as error:
        return str(error)


def send(other, messages, keeps):
    if dist.get_rank() == 0:
        kept = [dist.isend(torch.ones(1000), other, messages)][:keeps]
        say_dropped()
        for sent in kept:
            sent.wait()
    else:
        wait_until_dropped()
        dist.recv(torch.empty(1000), other, messages)


def send_again_when_recomputed(other, messages, keeps):
    """Checkpointing ends a recomputation once it has what backward needs. So it never comes to the wait."""
    kept = []

    def product_with_the_others(x):
        sent = dist.isend(x.detach(), other, messages)
        if is_recomputed():
            kept.extend([sent] * keeps)
            wait_until_dropped()
        theirs = torch.empty_like(x)
        dist.recv(theirs, other, messages)
        product = x * theirs
        sent.wait()
        return product

    whole(product_with_the_others, torch.ones(1000, requires_grad=True)).sum().backward()
    say_dropped()
    for sent in kept:
        sent.wait()


@pytest.mark.parametrize("run", [send, send_again_when_recomputed])
def test_naively_dropped_sends_never_arrive(two_ranks, run):
    assert two_ranks.run(naively, run, True, 300) == ["", ""]
    assert two_ranks.run(naively, run, False, short_timeout_s(5))[1], "rank 1 received what was dropped"


def drop_a_handle():
    """The worst difference of what comes behind a forward whose handle is dropped before its messages have arrived."""
    mine = LENGTHS[dist.get_rank()]
    inputs, d_o = qkv(sum(mine))
    cu_seqlens = cu_seqlens_of(mine)
    be_late()
    ours.dispatch(*inputs, cu_seqlens, cu_seqlens, layer=0)
    be_late()
    ours.core_attention(ours.dispatch(*inputs, cu_seqlens, cu_seqlens, layer=0))
    o = balanced(*inputs, cu_seqlens, layer=0)
    want = sdpa(*inputs, cu_seqlens)
    return worst([o, *torch.autograd.grad(o, inputs, d_o)], [want, *torch.autograd.grad(want, inputs, d_o)])


def test_handles_may_be_dropped(two_ranks):
    assert max(two_ranks.run(drop_a_handle)) < 1e-10


def recompute_late():
    mine = LENGTHS[dist.get_rank()]
    found = []
    for attend in (sdpa, balanced):

        def late(*inputs, attend=attend, **keywords):
            if is_recomputed():
                be_late()
            return attend(*inputs, **keywords)

        model = Model(late, wrap=whole)
        model(tokens_of(mine), cu_seqlens_of(mine)).backward()
        found.append(gradients(model))
    return worst(*found)


def test_a_rank_may_be_late_to_recompute(two_ranks):
    assert max(two_ranks.run(recompute_late)) < 1e-10


# Evaluation between a forward and its backward, of another batch. What is kept for backward belongs to one forward.


class NaivelyKept(torch.autograd.Function):
    """Attention of this rank alone that keeps O by layer, for recomputations."""

    kept = {}

    @staticmethod
    def forward(ctx, q, k, v, cu_seqlens, layer):
        ctx.save_for_backward(q, k, v)
        ctx.cu_seqlens = cu_seqlens
        if not is_recomputed():
            NaivelyKept.kept[layer] = sdpa(q, k, v, cu_seqlens)
        return NaivelyKept.kept[layer].clone()

    @staticmethod
    def backward(ctx, d_o):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return *torch.autograd.grad(sdpa(*inputs, ctx.cu_seqlens), inputs, d_o), None, None


def keeps_by_layer(q, k, v, cu_seqlens, layer):
    return NaivelyKept.apply(q, k, v, cu_seqlens, layer)


def evaluate_between(attend, evaluates):
    """The worst difference of a gradient, where a batch of the same lengths is evaluated before backward."""
    mine = LENGTHS[dist.get_rank()]
    cu_seqlens = cu_seqlens_of(mine)
    reference = Model(sdpa)
    reference(tokens_of(mine, 1), cu_seqlens).backward()
    model = Model(attend, wrap=whole)
    loss = model(tokens_of(mine, 1), cu_seqlens)
    if evaluates:
        with torch.no_grad():
            model(tokens_of(mine, 2), cu_seqlens)
    loss.backward()
    return worst(gradients(model), gradients(reference))


def test_evaluation_between_forward_and_backward_spoils_what_is_kept_by_layer(two_ranks):
    assert max(two_ranks.run(evaluate_between, keeps_by_layer, False)) < 1e-10
    assert min(two_ranks.run(evaluate_between, keeps_by_layer, True)) > 1e-3
    assert max(two_ranks.run(evaluate_between, balanced, True)) < 1e-10
