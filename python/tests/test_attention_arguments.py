"""Arguments of every form: strides, scales, head dims, None, log-sum-exp; and `can_run`, which gives the call's own answer."""

import math

import pytest
import torch
import torch.distributed as dist
from attention_model import cu_seqlens_of, distance, qkv, sdpa, worst

import distca as ours
from distca import _group as group

LENGTHS = [[60, 0, 141], [700, 3]]
MINE = LENGTHS[0]
CU_SEQLENS = cu_seqlens_of(MINE)
TYPES = [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


def differences(inputs, d_o, cu_seqlens, **options):
    """The worst of O, dQ, dK and dV beside sdpa of each document; of inputs and dO as they are laid out."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = ours.attention(*leaves, cu_seqlens, cu_seqlens, **options)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    want = sdpa(*exact, cu_seqlens, softmax_scale=options.get("softmax_scale"))
    return worst([o, *torch.autograd.grad(o, leaves, d_o)], [want, *torch.autograd.grad(want, exact, d_o.double())], least=1)


def layouts(tensor):
    """Tensors of the same shape whose numbers lie otherwise, by name."""
    tokens, heads, dim = tensor.shape
    flat = tensor.detach().flatten()
    return {
        "one token": tensor.detach()[:1].expand(tokens, heads, dim),
        "one head": tensor.detach()[:, :1].expand(tokens, heads, dim),
        "one number": flat[0].sign().expand(tokens, heads, dim),
        "one dim": tensor.detach()[:, :, :1].expand(tokens, heads, dim),
        "overlapping": flat.as_strided((tokens, heads, dim), (3, 1, 1)),
        "heads first": tensor.detach().transpose(0, 1).contiguous().transpose(0, 1),
        "dims first": tensor.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        "every second": torch.stack([tensor.detach()] * 2, 1)[:, 1],
        "flipped": tensor.detach().flip(0),
        "negative bit": torch._neg_view(tensor.detach()),
    }


LAYOUTS = list(layouts(torch.zeros(2, 2, 8)))


@pytest.mark.parametrize("dtype, bound", TYPES[:2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(layout, dtype, bound):
    inputs, d_o = qkv(sum(MINE), dtype=dtype)
    for which in range(4):
        given = [*inputs, d_o]
        given[which] = layouts(given[which])[layout]
        assert differences(given[:3], given[3], CU_SEQLENS) < bound, which


def strided_on_ranks():
    mine = LENGTHS[dist.get_rank()]
    inputs, d_o = qkv(sum(mine))
    found = []
    for layout in LAYOUTS:
        given = [layouts(one)[layout] for one in (*inputs, d_o)]
        found.append(differences(given[:3], given[3], cu_seqlens_of(mine)))
    summed, mean = (x.detach().requires_grad_() for x in inputs[:1] * 2)
    for reduce, leaf in ((torch.sum, summed), (torch.mean, mean)):  # whose gradients are expanded
        attended = (ours.attention(leaf, *inputs[1:], cu_seqlens_of(mine), cu_seqlens_of(mine)),
                    sdpa(leaf, *inputs[1:], cu_seqlens_of(mine)))
        found.append(worst(*([torch.autograd.grad(reduce(o), leaf)[0]] for o in attended)))
    return max(found)


def test_any_strides_on_two_ranks(two_ranks):
    assert max(two_ranks.run(strided_on_ranks)) < 1e-10


def test_a_sparse_gradient():
    inputs, d_o = qkv(sum(MINE))
    o = ours.attention(*inputs, CU_SEQLENS, CU_SEQLENS)
    want = torch.autograd.grad(o, inputs, d_o, retain_graph=True)
    assert all(torch.equal(*pair) for pair in zip(torch.autograd.grad(o, inputs, d_o.to_sparse()), want))


# Scales.


@pytest.mark.parametrize("dtype, bound", TYPES)
@pytest.mark.parametrize("scale", [-0.25, -3.0, 1e-3, 7])
def test_any_scale(scale, dtype, bound):
    inputs, d_o = qkv(sum(MINE), dtype=dtype)
    assert differences(inputs, d_o, CU_SEQLENS, softmax_scale=scale) < bound


def negative_on_ranks():
    mine = LENGTHS[dist.get_rank()]
    return differences(*qkv(sum(mine)), cu_seqlens_of(mine), softmax_scale=-0.5)


def test_a_negative_scale_on_two_ranks(two_ranks):
    assert max(two_ranks.run(negative_on_ranks)) < 1e-10


# Head dims, None, LSE.


@pytest.mark.parametrize("dtype, bound", TYPES[:2])
@pytest.mark.parametrize("head_dim, head_dim_v", [(1, 1), (5, 5), (16, 3), (20, 33), (250, 250)])
def test_any_head_dim(head_dim, head_dim_v, dtype, bound):
    (q, k, _), _ = qkv(sum(MINE), head_dim=head_dim, dtype=dtype)
    (_, _, v), d_o = qkv(sum(MINE), head_dim=head_dim_v, dtype=dtype)
    assert differences((q, k, v), d_o, CU_SEQLENS) < bound


def padded_on_ranks():
    mine = LENGTHS[dist.get_rank()]
    return differences(*qkv(sum(mine), head_dim=21), cu_seqlens_of(mine))


def test_any_head_dim_on_two_ranks(two_ranks):
    assert max(two_ranks.run(padded_on_ranks)) < 1e-10


def flash(inputs, cu_seqlens, **options):
    return ours.flash_attn_varlen_func(*inputs, cu_seqlens, cu_seqlens, 0, 0, causal=True, **options)


def test_none_turns_off():
    inputs, _ = qkv(sum(MINE))
    plain = flash(inputs, CU_SEQLENS)
    assert torch.equal(plain, flash(inputs, CU_SEQLENS, window_size=None, softcap=None, dropout_p=None, softmax_scale=None))
    assert torch.equal(plain, flash(inputs, CU_SEQLENS, window_size=[None, None]))
    assert torch.equal(plain, flash(inputs, CU_SEQLENS, window_size=(2**62, 0)))
    assert torch.equal(ours.attention(*inputs, CU_SEQLENS, CU_SEQLENS, window_size=None), plain)


def lse_of(q, k, cu_seqlens, scale):
    """[heads, tokens] of each document."""
    found = [torch.zeros(q.shape[1], 0, dtype=torch.float64)]
    places = cu_seqlens.tolist()
    for begin, end in zip(places, places[1:]):
        keys = k[begin:end].double().repeat_interleave(q.shape[1] // k.shape[1], 1)
        scores = torch.einsum("ihd,jhd->hij", q[begin:end].double(), keys) * scale
        hidden = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(hidden, -math.inf).logsumexp(-1))
    return torch.cat(found, 1).detach()


def with_lse():
    mine = LENGTHS[dist.get_rank()] if dist.is_initialized() else MINE
    cu_seqlens, found = cu_seqlens_of(mine), []
    for dtype, scale in ((torch.float64, -0.3), (torch.float32, 0.2), (torch.bfloat16, 0.2)):
        inputs, d_o = qkv(sum(mine), head_dim=20, dtype=dtype)
        o, lse, probabilities = flash(inputs, cu_seqlens, softmax_scale=scale, return_attn_probs=True)
        assert probabilities is None and not lse.requires_grad and lse.shape == (4, sum(mine)) and lse.is_contiguous()
        assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        found.append(distance(lse, lse_of(*inputs[:2], cu_seqlens, scale)))
        lse.zero_()  # it is the caller's own
        again = flash(inputs, cu_seqlens, softmax_scale=scale)
        pairs = zip(torch.autograd.grad(o, inputs, d_o), torch.autograd.grad(again, inputs, d_o))
        assert torch.equal(o, again) and all(torch.equal(*pair) for pair in pairs)
    return max(found)


def test_lse_is_returned_as_flash_attention_does(two_ranks):
    assert max(with_lse(), *two_ranks.run(with_lse)) < 1e-5


@pytest.mark.parametrize("dtype", [dtype for dtype, _ in TYPES])
def test_a_document_has_the_same_bits_whatever_stands_beside_it(dtype):
    inputs, d_o = qkv(sum(MINE), dtype=dtype)
    begin, end = 60, 201
    for lengths in ([141], [1, 141], [300, 141, 5], [141] * 3):
        first = sum(lengths[: lengths.index(141)])
        others, other_d_o = qkv(sum(lengths), dtype=dtype, seed=5)
        given = [x.detach().clone() for x in (*others, other_d_o)]
        for x, whole in zip(given, (*inputs, d_o)):
            x[first : first + 141] = whole.detach()[begin:end]
        results = []
        for tensors, cu_seqlens in (([*inputs, d_o], CU_SEQLENS), (given, cu_seqlens_of(lengths))):
            leaves = [x.detach().requires_grad_() for x in tensors[:3]]
            o, lse, _ = flash(leaves, cu_seqlens, return_attn_probs=True)
            results.append([o, *torch.autograd.grad(o, leaves, tensors[3]), lse.t()])
        for a, b in zip(*results):
            assert torch.equal(a[begin:end], b[first : first + 141])


# What can_run says is what the call does.


def cases():
    """(arguments that are changed), served ones among them."""
    inputs, _ = qkv(sum(MINE), dtype=torch.float32)
    q, k, v = (x.detach() for x in inputs)
    with torch.inference_mode():
        of_inference = CU_SEQLENS.clone()
    return {
        "plain": {}, "expanded": {"k": k[:, :1].expand(-1, 2, -1)}, "odd dim": {"q": q[..., :7], "k": k[..., :7]},
        "window None": {"window_size": None}, "scale": {"softmax_scale": -1}, "scale of numpy's kind": {"softmax_scale": torch.tensor(0.5)},
        "scale nan": {"softmax_scale": math.nan}, "scale inf": {"softmax_scale": math.inf}, "scale -inf": {"softmax_scale": -math.inf},
        "scale 0": {"softmax_scale": 0}, "scale text": {"softmax_scale": "a"}, "scale 1e300": {"softmax_scale": 1e300},
        "scale learned": {"softmax_scale": torch.tensor(0.5, requires_grad=True)},
        "list": {"cu_seqlens_q": CU_SEQLENS.tolist(), "cu_seqlens_k": CU_SEQLENS.tolist()}, "None": {"cu_seqlens_k": None},
        "q list": {"q": q.tolist()}, "window text": {"window_size": "ab"}, "window 3": {"window_size": (1, 2, 3)},
        "window number": {"window_size": 5}, "window half": {"window_size": (1.5, 0)}, "not causal": {"causal": False},
        "layer text": {"layer": "a"}, "layer -1": {"layer": -1}, "layer": {"layer": 3}, "work": {"linear_work": -1},
        "work half": {"linear_work": 0.5}, "meta": {"q": q.to("meta")}, "sparse": {"v": v.to_sparse()}, "no heads": {"q": q[:, :0]},
        "half": {"q": q.half(), "k": k.half(), "v": v.half()}, "wide": {"q": torch.zeros(sum(MINE), 4, 264), "k": torch.zeros(sum(MINE), 2, 264)},
        "lengths": {"cu_seqlens_q": CU_SEQLENS + 1, "cu_seqlens_k": CU_SEQLENS + 1}, "cross": {"cu_seqlens_k": cu_seqlens_of([201])},
        "int64 keys": {"cu_seqlens_k": CU_SEQLENS.long()}, "floats": {"cu_seqlens_q": CU_SEQLENS.float(), "cu_seqlens_k": CU_SEQLENS.float()},
        "inference": {"cu_seqlens_q": of_inference, "cu_seqlens_k": of_inference},
        "training of inference": {"cu_seqlens_q": of_inference, "cu_seqlens_k": of_inference, "q": q.clone().requires_grad_()},
    }


@pytest.mark.parametrize("name", cases())
def test_can_run_gives_the_calls_own_answer(name):
    inputs, _ = qkv(sum(MINE), dtype=torch.float32)
    q, k, v = (x.detach() for x in inputs)
    arguments = {"q": q, "k": k, "v": v, "cu_seqlens_q": CU_SEQLENS, "cu_seqlens_k": CU_SEQLENS, **cases()[name]}
    before = group.alone()
    answer = ours.can_run(**arguments)
    assert group.alone() == before
    try:
        ours.attention(**arguments)
        refused = ""
    except ValueError as error:
        refused = str(error)
        assert group.alone() == before
    assert answer.reason == refused and bool(answer) == (not refused) and "\n" not in refused


def test_can_run_takes_what_flash_attention_takes():
    inputs, _ = qkv(sum(MINE))
    taken = dict(max_seqlen_q=5, max_seqlen_k=5, deterministic=True, return_attn_probs=True, dropout_p=None, softcap=None)
    assert ours.can_run(*inputs, CU_SEQLENS, CU_SEQLENS, **taken)
    assert str(ours.can_run(*inputs, CU_SEQLENS, CU_SEQLENS, dropout_p=0.5)) == "dropout_p = 0.5: dropout is not served"


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_is_the_models(two_ranks, device):
    two_ranks.run(on_default_device, device)


def on_default_device(device):
    cu_seqlens = cu_seqlens_of(LENGTHS[dist.get_rank()])
    inputs, d_o = qkv(sum(LENGTHS[dist.get_rank()]), head_dim=13)
    torch.set_default_device(device)
    try:
        part = dist.new_group([0, 1])
        for of in (None, part):
            for batch in ours.plan_ahead([{"cu_seq_lens_q": cu_seqlens}] * 2, group=of):
                o, _, _ = flash(inputs, batch["cu_seq_lens_q"], group=of, layer=0, return_attn_probs=True)
                o.backward(d_o)
        ours.can_run(*inputs, cu_seqlens, cu_seqlens)
    finally:
        torch.set_default_device(None)
    assert o.device.type == "cpu" and distance(o, sdpa(*inputs, cu_seqlens)) < 1e-10
