"""What attention serves. Everything else is refused by name, in one line, before anything is sent."""

import weakref
from dataclasses import dataclass

import torch

_MOST_HEAD_DIM = 256


@dataclass(frozen=True)
class Answer:
    """True if it can run, else false, with the reason in one line."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return self.reason or "attention is served"


_equal = []  # weak references to two tensors that were equal, and their versions: the host reads a device once for all layers


def _check_lengths(cu_seqlens_q, cu_seqlens_k):
    if cu_seqlens_q is cu_seqlens_k:
        return
    both = cu_seqlens_q, cu_seqlens_k
    versions = [None if tensor.is_inference() else tensor._version for tensor in both]
    if _equal and None not in versions and all(was() is tensor for was, tensor in zip(_equal[0], both)) and _equal[1] == versions:
        return
    if not torch.equal(cu_seqlens_q.cpu(), cu_seqlens_k.cpu()):
        raise ValueError("cu_seqlens_q and cu_seqlens_k differ: cross attention is not served")
    _equal[:] = [weakref.ref(tensor) for tensor in both], versions


def _check_tensors(q, k, v, cu_seqlens):
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q is on {q.device}: attention is served on the CPU and on CUDA devices")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {tensor.device}: one device for all three")
    if cu_seqlens.device.type != "cpu" and cu_seqlens.device != q.device:
        raise ValueError(f"q is on {q.device} and cu_seqlens_q on {cu_seqlens.device}: there or on the CPU")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise ValueError(f"{name} has shape {list(tensor.shape)}: [tokens, heads, head_dim]")
        if tensor.dtype != q.dtype:
            raise ValueError(f"q is {q.dtype} and {name} is {tensor.dtype}: one dtype for all three")
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(f"q has {q.shape[0]} tokens and {name} has {tensor.shape[0]}: as many")
        if tensor.shape[2] > _MOST_HEAD_DIM or tensor.shape[2] % 8 != 0 or tensor.shape[2] == 0:
            raise ValueError(f"head_dim of {name} is {tensor.shape[2]}: a multiple of 8, at most {_MOST_HEAD_DIM}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise ValueError(f"q is {q.dtype}: torch.float32, torch.bfloat16 or torch.float64")
    if k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1) != 0 or k.shape[1] == 0:
        raise ValueError(f"{q.shape[1]}, {k.shape[1]} and {v.shape[1]} heads of q, k and v: the first a multiple of the others")
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"head_dim of q is {q.shape[2]} and of k {k.shape[2]}: equal")


def _window_left(causal, window_size) -> int:
    left, right = window_size
    if not causal and right != 0:
        raise ValueError("attention that is not causal is not served: causal=True")
    return -1 if left < 0 else int(left)


def offsets_of(cu_seqlens, tokens=None) -> list:
    """[documents + 1] of this rank; `tokens` is where they end, if that is known. Raises ValueError."""
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point():
        raise ValueError(f"cu_seqlens_q has shape {list(cu_seqlens.shape)} of {cu_seqlens.dtype}: [documents + 1] of integers")
    places = cu_seqlens.tolist()
    if not places or places[0] != 0 or any(b < a for a, b in zip(places, places[1:])):
        raise ValueError("cu_seqlens_q begins with 0 and never descends")
    if tokens is not None and places[-1] != tokens:
        raise ValueError(f"cu_seqlens_q ends with {places[-1]}, q has {tokens} tokens")
    return places


def checked(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, layer) -> tuple[int, float]:
    """window_left and the scale of what `attention` was given. Raises ValueError."""
    _check_lengths(cu_seqlens_q, cu_seqlens_k)
    _check_tensors(q, k, v, cu_seqlens_q)
    window_left = _window_left(causal, window_size)
    if softmax_scale == 0:
        raise ValueError("softmax_scale = 0: another number, or None for 1 / sqrt(head_dim)")
    if layer is not None and layer < 0:
        raise ValueError(f"layer = {layer}: 0 or more")
    return window_left, q.shape[2] ** -0.5 if softmax_scale is None else float(softmax_scale)


def refuse_extras(dropout_p=0.0, softcap=0.0, alibi_slopes=None, return_attn_probs=False, block_table=None):
    """Raises ValueError for what flash-attention has and `attention` does not."""
    refuse(
        (dropout_p != 0, f"dropout_p = {dropout_p}: dropout is not served"),
        (softcap != 0, f"softcap = {softcap}: softcap is not served"),
        (alibi_slopes is not None, "alibi_slopes: ALiBi is not served"),
        (return_attn_probs, "return_attn_probs: attention returns no probabilities"),
        (block_table is not None, "block_table: a paged cache of keys is not served"),
    )


def refuse(*refusals):
    """refusals: (whether it is asked for, the line that says so). Raises ValueError with the first line that holds."""
    for wrong, line in refusals:
        if wrong:
            raise ValueError(line)


def can_run(q, k, v, cu_seqlens_q, cu_seqlens_k, *, softmax_scale=None, causal=True, window_size=(-1, -1), layer=None,
            **extras) -> Answer:
    """Whether `attention` serves these arguments, and if not, why. It sends nothing and computes nothing.

    The arguments are those of `attention`; `extras` are those of `flash_attn_varlen_func` besides: dropout_p, softcap,
    alibi_slopes, return_attn_probs, block_table. Returns an object that is true or false and has a `reason`.

        if not (answer := distca.can_run(q, k, v, cu_seqlens, cu_seqlens)): print(answer.reason)
    """
    try:
        checked(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, layer)
        offsets_of(cu_seqlens_q, q.shape[0])
        refuse_extras(**extras)
    except ValueError as refusal:
        return Answer(str(refusal))
    return Answer("")
