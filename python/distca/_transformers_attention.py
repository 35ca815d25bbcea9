"""What Transformers calls in a layer of an attached model: its attention, and what makes the mask of it.

A mask is not made: attention stays within documents anyhow. In its place stands an empty tensor, [0, 1 + window, 1, 1],
which may be moved and cut like a mask. The window is 0 where there is none, and -1 for a mask of another kind. So a window holds for a layer if the model's mask has it, as
with sdpa. Bad input raises ValueError in one line. Threads. As `distca.attention`.
"""

import contextlib
import contextvars
import inspect
from dataclasses import dataclass

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

from distca._attention import attention
from distca._served import refuse

NAME = "distca"


@dataclass(frozen=True, eq=False)
class Documents:
    """What the layers of one forward share. It travels through the decoder as a keyword argument."""

    cu_seqlens: torch.Tensor  # [documents + 1], or [pieces, 3]
    group: object
    linear_work: int  # as in distca.attention
    kernel: str  # likewise


AS_SDPA = "as sdpa"  # a forward that sends nothing and computes what it computes with sdpa
AS_VALUES = "as values"  # a forward that shows what else mixes tokens: O of a token is its own V
_under_way = contextvars.ContextVar("forward of an attached model", default=None)  # this, or what is served


def forward_under_way():
    return _under_way.get()


@contextlib.contextmanager
def under_way(forward):
    token = _under_way.set(forward)
    try:
        yield
    finally:
        _under_way.reset(token)


def _is_served() -> bool:
    """Whether masks are those of a forward that is served. In backward, such a one is computed again."""
    return _under_way.get() not in (None, AS_SDPA) or torch._C._current_graph_task_id() != -1


def _window_of(mask_function):
    """How many keys a query sees, its own among them, by a mask of Transformers; 0 for all, -1 for another mask."""
    if mask_function is causal_mask_function:
        return 0
    pattern = sliding_window_causal_mask_function(1)

    def parts(function):
        return inspect.getclosurevars(function).nonlocals.get("mask_functions", ())

    def codes(function):
        return [part.__code__ for part in parts(function)]

    if getattr(mask_function, "__code__", None) is not pattern.__code__ or codes(mask_function) != codes(pattern):
        return -1
    return inspect.getclosurevars(parts(mask_function)[0]).nonlocals["sliding_window"]


@torch.compiler.disable
def _mask(*arguments, mask_function=causal_mask_function, **others):
    if not _is_served():
        return sdpa_mask(*arguments, mask_function=mask_function, **others)
    return torch.empty(0, 1 + _window_of(mask_function), 1, 1, dtype=torch.bool, device="cpu")


@torch.compiler.disable
def _attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
               is_causal=None, s_aux=None, distca_documents=None, **others):
    """O [batch, tokens, heads, head_dim_v] of query [batch, heads, tokens, head_dim], and None for probabilities."""
    if _under_way.get() == AS_VALUES:
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2), None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    ours = attention_mask is not None and attention_mask.shape[0] == 0 and attention_mask.shape[2:] == (1, 1)
    refuse(
        (dropout, f"dropout = {dropout}: dropout of attention is not served (attention_dropout=0, or attn_pdrop=0, in the config)"),
        (softcap is not None, f"softcap = {softcap}: softcap is not served"),
        (s_aux is not None, "s_aux: attention sinks are not served"),
        (others.get("position_bias") is not None, "position_bias: a bias of scores is not served"),
        (others.get("cache") is not None, "a paged cache of keys is not served"),
        (not causal, "attention that is not causal is not served"),
    )
    if distca_documents is None:  # generation
        refuse(
            (_is_served(), "the model keeps its keyword arguments from its attention: it is not served"),
            (torch.is_grad_enabled() and query.requires_grad,
             "attention is called by a model that is not attached: distca.transformers.attach(model), and call that model; a model "
             "whose configuration an attached one has, too, needs a copy of its own (copy.deepcopy(config))"),
        )
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, is_causal=causal,
                                      **others)
    refuse(
        (key.shape[2] != query.shape[2], f"{query.shape[2]} queries and {key.shape[2]} keys: cross attention is not served"),
        (attention_mask is not None and not ours, "the model makes a mask of its own for its attention: it is not served"),
        (ours and attention_mask.shape[1] == 0,
         "the model has a mask that is neither causal nor causal with a window: it is not served"),
        (attention_mask is None and sliding_window is not None,
         f"sliding_window = {sliding_window} and no mask that has it: it is not served"),
    )
    dtype = value.dtype
    if query.dtype == torch.float32 and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    # RoPE leaves q and k in fp32 under autocast. One row of a batch is a view.
    q, k, v = (x.transpose(1, 2).flatten(0, 1).to(dtype) for x in (query, key, value))
    window = attention_mask.shape[1] - 1 if ours else 0  # theirs counts the query's own key
    cu_seqlens = distca_documents.cu_seqlens
    o = attention(q, k, v, cu_seqlens, cu_seqlens, softmax_scale=scaling,
                  window_size=(window - 1, 0) if window else (-1, -1),
                  group=distca_documents.group, layer=getattr(module, "layer_idx", None),
                  linear_work=distca_documents.linear_work,
                  kernel=distca_documents.kernel)
    return o.unflatten(0, (query.shape[0], query.shape[2])), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
