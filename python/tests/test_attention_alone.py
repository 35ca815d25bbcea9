"""Without a process group, and what is refused."""

import pytest
import torch
from attention_model import cu_seqlens_of, distance, qkv, sdpa, worst
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import distca as ours
from distca import _group as group
from distca._ops import ops

LENGTHS = [3, 200, 1]
CU_SEQLENS = cu_seqlens_of(LENGTHS)
LONGEST = max(LENGTHS)


def call(change):
    (q, k, v), _ = qkv(sum(LENGTHS), dtype=torch.float32)
    arguments = dict(q=q, k=k, v=v, cu_seqlens_q=CU_SEQLENS, cu_seqlens_k=CU_SEQLENS, max_seqlen_q=LONGEST,
                     max_seqlen_k=LONGEST, causal=True)
    return ours.flash_attn_varlen_func(**{**arguments, **change})


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_one_process_computes_alone(dtype, bound):
    inputs, d_o = qkv(sum(LENGTHS), dtype=dtype)
    o = ours.attention(*inputs, CU_SEQLENS, CU_SEQLENS, LONGEST, LONGEST)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want = sdpa(*exact, CU_SEQLENS)
    assert distance(o, want) < bound
    assert worst(torch.autograd.grad(o, inputs, d_o), torch.autograd.grad(want, exact, d_o.double())) < bound


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_off(mode):
    inputs, _ = qkv(sum(LENGTHS))
    before = group.alone()
    with mode():
        os = [ours.attention(*inputs, CU_SEQLENS, CU_SEQLENS) for _ in range(2)]
    assert not os[0].requires_grad and torch.equal(*os)
    assert distance(os[0], sdpa(*inputs, CU_SEQLENS)) < 1e-10
    assert group.alone().forwards - before.forwards == 2


def test_arguments_in_the_order_of_flash_attention():
    (q, k, v), _ = qkv(sum(LENGTHS), dtype=torch.float32)
    o = ours.flash_attn_varlen_func(q, k, v, CU_SEQLENS, CU_SEQLENS, LONGEST, LONGEST, 0.0, 0.2, True, (50, -1), 0.0, None,
                                    True, False, None)
    assert distance(o, sdpa(q.double(), k.double(), v.double(), CU_SEQLENS, 50, 0.2)) < 1e-5
    same = call({"causal": False, "window_size": (50, 0), "softmax_scale": 0.2})
    assert torch.equal(o, same)


def test_strides_are_free():
    """As Transformers has them: [1, heads, tokens, head_dim]."""
    (q, k, v), _ = qkv(sum(LENGTHS))
    others = [x.detach().transpose(0, 1).contiguous()[None][0].transpose(0, 1) for x in (q, k, v)]
    others[2] = others[2].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(ours.attention(*others, CU_SEQLENS, CU_SEQLENS), ours.attention(q, k, v, CU_SEQLENS, CU_SEQLENS))


def heads_of(name, heads=2, head_dim=16, **options):
    return {name: torch.zeros(sum(LENGTHS), heads, head_dim, **options)}


def half():
    return {name: torch.zeros(sum(LENGTHS), 2, 16, dtype=torch.float16) for name in "qkv"}


@pytest.mark.parametrize("change, line", [
    ({"causal": False}, "attention that is not causal is not served: causal=True"),
    ({"cu_seqlens_k": cu_seqlens_of([204])},
     "cu_seqlens_q and cu_seqlens_k differ: cross attention is not served, and pieces of documents that are cut over "
     "ranks are given as distca.pieces makes them"),
    ({"block_table": torch.zeros(1)}, "block_table: a paged cache of keys is not served"),
    ({"dropout_p": 0.1}, "dropout_p = 0.1: dropout is not served"),
    ({"softcap": 30.0}, "softcap = 30.0: softcap is not served"),
    ({"alibi_slopes": torch.zeros(4)}, "alibi_slopes: ALiBi is not served"),
    (heads_of("q", 4, 264), "head_dim of q is 264: 1 to 256"),
    (heads_of("v", 2, 0), "head_dim of v is 0: 1 to 256"),
    (heads_of("k", 2, 8), "head_dim of q is 16 and of k 8: equal"),
    (half(), "q is torch.float16: torch.float32, torch.bfloat16 or torch.float64"),
    (heads_of("v", dtype=torch.bfloat16), "q is torch.float32 and v is torch.bfloat16: one dtype for all three"),
    (heads_of("q", device="meta"), "q is on meta: attention is served on the CPU and on CUDA devices"),
    (heads_of("k", device="meta"), "q is on cpu and k on meta: one device for all three"),
    (dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), CU_SEQLENS.to("meta")),
     "q is on cpu and cu_seqlens_q on meta: there or on the CPU"),
    (heads_of("q", 3), "3, 2 and 2 heads of q, k and v: the first a multiple of the others"),
    ({"k": torch.zeros(7, 2, 16)}, "q has 204 tokens and k has 7: as many, since cross attention is not served"),
    ({"q": torch.zeros(1, 204, 4, 16)}, "q has shape [1, 204, 4, 16]: [tokens, heads, head_dim]"),
    ({"cu_seqlens_q": torch.tensor([0, 5])} | {"cu_seqlens_k": torch.tensor([0, 5])},
     "cu_seqlens_q ends with 5, q has 204 tokens"),
    ({"softmax_scale": 0.0}, "softmax_scale = 0.0: another number, or None for 1 / sqrt(head_dim)"),
    ({"softmax_scale": float("nan")}, "softmax_scale = nan: a finite number, at most 3.4e+38, or None for 1 / sqrt(head_dim)"),
    ({"softmax_scale": -float("inf")}, "softmax_scale = -inf: a finite number, at most 3.4e+38, or None for 1 / sqrt(head_dim)"),
    ({"cu_seqlens_q": [0, 204]}, "cu_seqlens_q is of type list: a tensor, and all layers of a forward get the same cu_seqlens_q"),
    ({"layer": -1}, "layer = -1: 0 or more"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_refuses_by_name(change, line):
    before = group.alone()
    with pytest.raises(ValueError) as refused:
        call(change)
    assert str(refused.value) == line
    assert group.alone() == before


def test_frozen_attention_may_be_recomputed():
    x, weight = torch.randn(sum(LENGTHS), 2, 8), torch.ones(8, requires_grad=True)

    def layer(x):
        return ours.attention(x, x, x, CU_SEQLENS, CU_SEQLENS, layer=0) * weight

    checkpoint(layer, x, use_reentrant=False).sum().backward()
    wanted = ours.attention(x, x, x, CU_SEQLENS, CU_SEQLENS).sum((0, 1))
    assert torch.allclose(weight.grad, wanted, rtol=1e-5, atol=1e-5)


def test_frozen_attention_over_pieces_is_recomputed_where_its_input_has_gradients():
    x, weight = torch.randn(sum(LENGTHS), 2, 8), torch.ones(8, requires_grad=True)
    pieces = torch.tensor([[i, 0, length] for i, length in enumerate(LENGTHS)])

    def layer(x):
        return ours.attention(x, x, x, pieces, pieces, layer=0) * weight

    with pytest.raises(ValueError, match="and where Q, K and V of pieces have no gradients, give the layer's input some"):
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    checkpoint(layer, x.requires_grad_(), use_reentrant=False).sum().backward()
    wanted = ours.attention(x, x, x, CU_SEQLENS, CU_SEQLENS).sum((0, 1))
    assert torch.allclose(weight.grad, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("when", [1, 2])
def test_what_is_written_to_after_dispatch_is_found(when):
    (q, k, v), _ = qkv(sum(LENGTHS))
    handle = ours.dispatch(q, k, v, CU_SEQLENS, CU_SEQLENS, layer=0)
    if when == 2:
        handle = ours.core_attention(handle)
    with torch.no_grad():
        q.mul_(2)
    with pytest.raises(RuntimeError, match="^q, k or v was written to in place after dispatch"):
        (ours.core_attention if when == 1 else ours.combine)(handle)


def test_an_o_that_is_combined_twice_is_refused():
    inputs, _ = qkv(sum(LENGTHS))
    handle = ours.core_attention(ours.dispatch(*inputs, CU_SEQLENS, CU_SEQLENS, layer=0))
    with pytest.raises(RuntimeError, match="combine was called twice for one dispatch"):
        (ours.combine(handle) + ours.combine(handle)).sum().backward()


def test_operators_know_shapes_without_data():
    with FakeTensorMode() as mode:
        q, k, v = torch.empty(9, 4, 16), torch.empty(9, 2, 16), torch.empty(9, 2, 8)
        step = torch.empty(1, dtype=torch.float64)
        handle = ops.core_attention(ops.dispatch(q, k, v, step, 0, 0.25, -1, 0, "auto"))
        o = ops.combine(handle, q, k, v)
    assert o.fake_mode is mode and o.shape == (9, 4, 8) and o.dtype == torch.float32
    assert handle.shape == (1,) and handle.dtype == torch.float64


def test_a_tensor_that_is_no_handle_is_refused():
    inputs, _ = qkv(4)
    for wrong in (torch.zeros(1, dtype=torch.float64), torch.zeros(1), torch.empty(0, dtype=torch.float64)):
        with pytest.raises(RuntimeError, match="no handle of distca"):
            ops.combine(wrong, *inputs)
