"""Attention document by document with PyTorch's own, and a small model on either: what tests compare with."""

import torch
import torch.nn.functional as F

import distca as ours


def cu_seqlens_of(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32)


def sdpa(q, k, v, cu_seqlens, window_left=-1, softmax_scale=None, layer=None):
    """[tokens, heads, head_dim_v], the causal attention of each document."""
    places = cu_seqlens.tolist()
    parts = [q[:0, :, :1] * k[:0, :1, :1] * v[:0, :1]]  # no tokens, but a graph
    for begin, end in zip(places, places[1:]):
        if begin == end:
            continue
        group = q.shape[1] // k.shape[1]
        one = [x[begin:end].transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))]
        at = torch.arange(end - begin)
        seen = at[:, None] >= at[None, :]
        if window_left >= 0:
            seen &= at[:, None] - at[None, :] <= window_left
        parts.append(F.scaled_dot_product_attention(*one, attn_mask=seen, scale=softmax_scale).transpose(0, 1))
    return torch.cat(parts)


def balanced(q, k, v, cu_seqlens, layer=None):
    return ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=layer)


def qkv(tokens, heads=4, kv_heads=2, head_dim=16, dtype=torch.float64, seed=1):
    """Random Q, K, V as leaves with gradients, and dO."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(heads, head_dim), (kv_heads, head_dim), (kv_heads, head_dim), (heads, head_dim)]
    made = [torch.randn(tokens, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [tensor.requires_grad_() for tensor in made[:3]], made[3]


def distance(got, want, least=1e-30):
    """The difference, relative to what is wanted, or to `least` where that is smaller or zero."""
    want = want.double()
    return ((got.double() - want).norm() / want.norm().clamp_min(least)).item()


class Layer(torch.nn.Module):
    def __init__(self, number, attend, width=32):
        super().__init__()
        self.number, self.attend = number, attend
        self.norm = torch.nn.LayerNorm(width, dtype=torch.float64)
        self.into = torch.nn.Linear(width, 2 * width, dtype=torch.float64)
        self.out = torch.nn.Linear(width, width, dtype=torch.float64)
        self.last = torch.nn.Linear(width, width, dtype=torch.float64)

    def forward(self, x, cu_seqlens):
        heads = self.into(self.norm(x)).view(x.shape[0], 8, 8)
        q, k, v = heads.split([4, 2, 2], dim=1)
        o = self.attend(q, k, v, cu_seqlens, layer=self.number)
        x = x + self.out(o.flatten(1))
        return x + torch.tanh(self.last(x))


class Model(torch.nn.Module):
    """`wrap` calls a layer: torch.utils.checkpoint, say."""

    def __init__(self, attend, layers=3, wrap=lambda layer, *inputs: layer(*inputs), named=True):
        super().__init__()
        torch.manual_seed(7)
        self.layers = torch.nn.ModuleList(Layer(i if named else None, attend) for i in range(layers))
        self.wrap = wrap

    def forward(self, x, cu_seqlens):
        for layer in self.layers:
            x = self.wrap(layer, x, cu_seqlens)
        return (x * torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)).sum()


def tokens_of(lengths, seed=1):
    return torch.randn(sum(lengths), 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def worst(got, want, least=1e-30):
    return max(distance(a, b, least) for a, b in zip(got, want, strict=True))
