"""Gradients against finite differences, and what attention has no derivative for: it raises as PyTorch's own kernel does."""

import itertools

import pytest
import torch
import torch.distributed as dist
from attention_model import cu_seqlens_of, qkv
from torch.autograd import forward_ad

import distca as ours
from distca import _group as group

LENGTHS = [3, 0, 2, 1]
CU_SEQLENS = cu_seqlens_of(LENGTHS)
SECOND = "attention has no second derivative"


def attend(q, k, v):
    return ours.attention(q, k, v, CU_SEQLENS, CU_SEQLENS)


def inputs_of(kv_heads=1, head_dim=8):
    return qkv(sum(LENGTHS), heads=2, kv_heads=kv_heads, head_dim=head_dim)[0]


@pytest.fixture(autouse=True)
def one_thread():
    """Of ATen's: thousands of tiny calls."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kv_heads, head_dim", [(2, 8), (1, 5)])
@pytest.mark.parametrize("softmax_scale, window", [(None, -1), (-0.7, -1), (0.4, 1), (-3.0, 2)])
def test_gradcheck(kv_heads, head_dim, softmax_scale, window):
    def call(q, k, v):
        return ours.attention(q, k, v, CU_SEQLENS, CU_SEQLENS, softmax_scale=softmax_scale, window_size=(window, 0))

    assert torch.autograd.gradcheck(call, inputs_of(kv_heads, head_dim))


@pytest.mark.parametrize("wanted", [wanted for wanted in itertools.product((True, False), repeat=3) if any(wanted)], ids=str)
def test_gradcheck_of_some_of_q_k_and_v(wanted):
    assert torch.autograd.gradcheck(attend, [x.requires_grad_(on) for x, on in zip(inputs_of(), wanted)])


def penalty(inputs, o):
    gradients = torch.autograd.grad(o.pow(2).sum(), inputs, create_graph=True)
    return sum(one.pow(2).sum() for one in gradients)


def second_derivatives():
    """Ways to ask for one, by name. Each takes Q, K and V."""
    def product(q, k, v):
        torch.autograd.functional.hvp(lambda q: attend(q, k, v).pow(2).sum(), q.detach(), q.detach())

    def hessian(q, k, v):
        torch.autograd.functional.hessian(lambda q: attend(q, k, v).sum(), q.detach())

    return {
        "penalty": lambda q, k, v: penalty((q, k, v), attend(q, k, v)).backward(),
        # Of a loss with the penalty in it: autograd reaches the penalty first, and sends nothing for the loss.
        "penalty and loss": lambda q, k, v: (o := attend(q, k, v), (o.sum() + penalty((q,), o)).backward()),
        "of v alone": lambda q, k, v: penalty((v,), attend(q.detach(), k.detach(), v)).backward(),
        "with regard to k": lambda q, k, v: torch.autograd.grad(penalty((q,), attend(q, k, v)), k),
        "gradgradcheck": lambda q, k, v: torch.autograd.gradgradcheck(attend, (q, k, v)),
        "product": product,
        "hessian": hessian,
    }


@pytest.mark.parametrize("way", second_derivatives())
def test_second_derivatives_raise(way):
    with pytest.raises(RuntimeError) as raised:
        second_derivatives()[way](*inputs_of())
    assert str(raised.value).startswith(SECOND), raised.value


def test_a_graph_of_gradients_that_nobody_differentiates_is_served():
    inputs = inputs_of()
    plain = torch.autograd.grad(attend(*inputs).pow(2).sum(), inputs)
    graph = torch.autograd.grad(attend(*inputs).pow(2).sum(), inputs, create_graph=True)
    assert all(torch.equal(*pair) for pair in zip(plain, graph))


def second_on_ranks():
    """What a penalty raises on this rank, whether anything was sent for it, and whether attention works on."""
    lengths = [[70, 3], [500]][dist.get_rank()]
    inputs, _ = qkv(sum(lengths))
    cu_seqlens = cu_seqlens_of(lengths)
    layers = [ours.attention(*inputs, cu_seqlens, cu_seqlens, layer=layer) for layer in range(2)]
    loss = sum(o.pow(2).sum() for o in layers)
    (q_gradient,) = torch.autograd.grad(loss, inputs[:1], create_graph=True)
    before = group.statistics()
    try:
        (loss + q_gradient.pow(2).sum()).backward()
    except RuntimeError as error:
        return str(error), group.statistics() == before
    return "", False


def test_second_derivatives_raise_on_all_ranks_before_a_message(two_ranks):
    for line, nothing_sent in two_ranks.run(second_on_ranks):
        assert line.startswith(SECOND) and nothing_sent
    for line, _ in two_ranks.run(second_on_ranks):  # the group works on
        assert line.startswith(SECOND)


def in_forward_mode(q, k, v):
    with forward_ad.dual_level():
        attend(forward_ad.make_dual(q.detach(), torch.ones_like(q)), k, v)


TRANSFORMS = {
    "forward mode": (in_forward_mode, ValueError, "forward-mode differentiation of attention is not served"),
    "torch.func.grad": (lambda q, k, v: torch.func.grad(lambda q: attend(q, k, v).sum())(q.detach()), ValueError,
                        "attention within torch.func"),
    "torch.func.jvp": (lambda q, k, v: torch.func.jvp(lambda q: attend(q, k, v), (q.detach(),), (q.detach(),)), ValueError,
                       "attention within torch.func"),
    "torch.func.vmap": (lambda q, k, v: torch.func.vmap(lambda q: attend(q, k, v))(q.detach()[None]), ValueError,
                        "attention within torch.func"),
    "is_grads_batched": (lambda q, k, v: torch.autograd.grad((o := attend(q, k, v)), q, o.detach()[None],
                                                             is_grads_batched=True), RuntimeError, "d_o is a tensor of torch.func"),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused_by_name(transform):
    call, kind, line = TRANSFORMS[transform]
    with pytest.raises(kind) as raised:
        call(*inputs_of())
    assert str(raised.value).startswith(line), raised.value


def transformed_on_ranks(transform):
    before = group.statistics()
    call, kind, line = TRANSFORMS[transform]
    try:
        call(*inputs_of())
    except kind as error:
        return str(error).startswith(line), group.statistics().sent_bytes == before.sent_bytes
    return False, False


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused_on_all_ranks(two_ranks, transform):
    assert two_ranks.run(transformed_on_ranks, transform) == [(True, True)] * 2


def test_the_second_derivative_of_pytorchs_kernel_raises_as_well():
    q = inputs_of()[0].detach().transpose(0, 1)[None].requires_grad_()
    o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    with pytest.raises(RuntimeError, match="is not implemented"):
        penalty((q,), o).backward()
