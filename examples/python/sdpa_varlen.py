"""Causal attention of packed documents with PyTorch's own, one document at a time, in flash-attention's call."""

import torch
import torch.nn.functional as F


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True, layer=None):
    """q, k, v: [tokens, heads, head_dim]; k and v may have fewer heads. `layer` is not read."""
    places, parts = cu_seqlens_q.tolist(), []
    for begin, end in zip(places, places[1:]):
        one = [x[begin:end].transpose(0, 1) for x in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*one, is_causal=causal, enable_gqa=True).transpose(0, 1))
    return torch.cat(parts)
