"""verify and can_run: what they find, and what they leave as it was."""

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, qkv, sdpa, tokens_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import distca as ours

LENGTHS = [[351, 20], [90, 1]]


def whole(layer, *inputs):
    return checkpoint(layer, *inputs, use_reentrant=False)


def not_the_same(q, k, v, cu_seqlens, layer=None):
    """Attention that is wrong where it is balanced, in one layer of one rank."""
    before = ours.alone().forwards
    o = balanced(q, k, v, cu_seqlens, layer)
    is_alone = ours.alone().forwards > before
    return o if is_alone or layer != 1 or dist.get_rank() != 1 else o * 1.001


def verified(attend, wrap, data_parallel):
    mine = LENGTHS[dist.get_rank()]
    model = Model(attend, wrap=whole if wrap else (lambda layer, *inputs: layer(*inputs)))
    wrapped = DistributedDataParallel(model) if data_parallel else model
    marker = torch.ones_like(next(model.parameters()))
    next(model.parameters()).grad = marker
    before = ours.statistics()
    found = ours.verify(wrapped, {"x": tokens_of(mine), "cu_seqlens": cu_seqlens_of(mine)})
    assert next(model.parameters()).grad is marker
    after = ours.statistics()
    return found, (after.forwards - before.forwards, after.backwards - before.backwards)


@pytest.mark.parametrize("wrap, data_parallel", [(False, False), (True, False), (False, True)])
def test_balanced_attention_is_that_of_one_rank(two_ranks, wrap, data_parallel):
    first, second = two_ranks.run(verified, balanced, wrap, data_parallel)
    assert first == second and first[1] == (3, 3)  # one of the two runs is balanced
    assert first[0] and first[0].worst < 1e-10 and first[0].bound == 1e-10
    assert abs(first[0].loss - first[0].loss_alone) < 1e-9


def test_a_wrong_gradient_is_named(two_ranks):
    for found, _ in two_ranks.run(verified, not_the_same, False, False):
        assert not found and found.worst > 1e-5 and found.rank == 1
        assert found.parameter.startswith("layers.") and "above the bound" in str(found)


def not_finite(q, k, v, cu_seqlens, layer=None):
    before = ours.alone().forwards
    o = balanced(q, k, v, cu_seqlens, layer)
    return o * float("nan") if ours.alone().forwards == before and dist.get_rank() == 1 else o


def test_what_is_not_finite_is_wrong(two_ranks):
    for found, _ in two_ranks.run(verified, not_finite, False, False):
        assert not found and found.worst == float("inf") and found.rank == 1


class Dropped(Model):
    """With dropout of its own, and a parameter whose gradient is there on attention of a rank alone only."""

    def __init__(self):
        super().__init__(balanced)
        self.sometimes = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x, cu_seqlens):
        before = ours.alone().forwards
        loss = super().forward(torch.nn.functional.dropout(x, 0.5), cu_seqlens)
        return loss * self.sometimes if ours.alone().forwards > before else loss


def dropped():
    mine = LENGTHS[dist.get_rank()]
    state = torch.get_rng_state()
    found = ours.verify(Dropped(), {"x": tokens_of(mine), "cu_seqlens": cu_seqlens_of(mine)})
    return found, torch.equal(state, torch.get_rng_state())


def test_random_numbers_stay_and_a_missing_gradient_is_named(two_ranks):
    for found, same_state in two_ranks.run(dropped):
        assert same_state and not found and found.parameter == "sometimes" and found.worst == 1
        assert abs(found.loss - found.loss_alone) < 1e-9  # the same elements were dropped


def raising():
    def attend(q, k, v, cu_seqlens, layer=None):
        if dist.get_rank() == 1:
            raise ValueError("no such layer")
        return sdpa(q, k, v, cu_seqlens)

    mine = LENGTHS[dist.get_rank()]
    try:
        ours.verify(Model(attend), {"x": tokens_of(mine), "cu_seqlens": cu_seqlens_of(mine)})
    except (ValueError, RuntimeError) as error:
        return str(error)


def test_a_rank_that_raises_is_named(two_ranks):
    assert two_ranks.run(raising) == ["verify: rank 1 failed: no such layer", "no such layer"]


def never_attached():
    mine = LENGTHS[dist.get_rank()]
    try:
        ours.verify(Model(sdpa), {"x": tokens_of(mine), "cu_seqlens": cu_seqlens_of(mine)})
    except ValueError as error:
        return str(error)


def test_a_model_without_balanced_attention_is_refused(two_ranks):
    for line in two_ranks.run(never_attached):
        assert line == "verify: no attention of this model is balanced: attach it, or call distca.attention in it"


def test_gradients_must_be_on():
    with torch.no_grad(), pytest.raises(ValueError, match="outside of no_grad"):
        ours.verify(Model(balanced), {})


def test_of_one_process():
    found = ours.verify(Model(balanced), {"x": tokens_of([40, 3]), "cu_seqlens": cu_seqlens_of([40, 3])})
    assert found and found.worst == 0


def test_a_model_without_gradients_is_refused():
    def detached(q, k, v, cu_seqlens, layer=None):
        return sdpa(q, k, v, cu_seqlens)

    batch = {"x": tokens_of([9]), "cu_seqlens": cu_seqlens_of([9])}
    with pytest.raises(ValueError, match="no parameter got a gradient"):
        ours.verify(Model(detached), batch, loss=lambda output: output.detach().requires_grad_())


def test_a_loss_is_one_number():
    batch = {"x": tokens_of([9]), "cu_seqlens": cu_seqlens_of([9])}
    with pytest.raises(ValueError, match=r"the loss is a tensor of \[2, 3\], where one number is needed: loss=torch.sum"):
        ours.verify(Model(balanced), batch, loss=lambda output: output.new_ones(2, 3))
    with pytest.raises(ValueError, match="the loss is a float, where"):
        ours.verify(Model(balanced), batch, loss=lambda output: 1.5)


def test_can_run_says_why_not():
    (q, k, v), _ = qkv(9, dtype=torch.float32)
    cu_seqlens = cu_seqlens_of([9])
    assert ours.can_run(q, k, v, cu_seqlens, cu_seqlens) and not ours.can_run(q, k, v, cu_seqlens, cu_seqlens).reason
    for changes, line in (({"causal": False}, "attention that is not causal is not served: causal=True"),
                          ({"dropout_p": 0.5}, "dropout_p = 0.5: dropout is not served"),
                          ({"q": q.half()}, "q is torch.float16 and k is torch.float32: one dtype for all three")):
        answer = ours.can_run(**{"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens} | changes)
        assert not answer and isinstance(answer.reason, str)
        if "q" not in changes:
            assert str(answer) == line
