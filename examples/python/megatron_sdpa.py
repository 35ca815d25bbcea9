"""A core attention of packed documents for Megatron-Core with PyTorch's own. Megatron's local one takes none."""

import torch
from sdpa_varlen import flash_attn_varlen_func


class PackedAttention(torch.nn.Module):
    """Megatron's constructor and call. All but Q, K, V and the documents is not read."""

    def __init__(self, **_):
        super().__init__()

    def forward(self, query, key, value, attention_mask, /, *, attn_mask_type, attention_bias, packed_seq_params):
        cu_seqlens, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
        return flash_attn_varlen_func(query, key, value, cu_seqlens, cu_seqlens, longest, longest).flatten(1)
