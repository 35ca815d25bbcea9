"""What attention serves. Everything else is refused by name, in one line, before anything is sent."""

import operator
import weakref
from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from distca._compiled_kernels import why_not
from distca._group import resolved
from distca._ping_pong import refuse_reentrant_checkpoint

_MOST_HEAD_DIM = 256
_MOST_WINDOW = 2**40  # tokens: a wider one sees every key
KERNELS = ("auto", "cpu", "aten", "fa4", "reference")  # docs/kernels.md
_UNNAMED = "attention is under activation checkpointing and has no layer=: give each layer its number"


@dataclass(frozen=True)
class Answer:
    """True if it can run, else false, with the reason in one line."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return self.reason or "attention is served"


_equal = []  # weak references to two tensors that were equal, and their states: the host reads a device once for all layers


def state_of(tensor):
    """What tells whether the numbers of a tensor are those of before, or None where nobody can tell.

    On the CPU, these are the numbers themselves: numpy, `.data` and torch.distributed write them and leave the version as
    it was. On a device, which the host does not wait for, it is the version alone.
    """
    version = None if tensor.is_inference() else tensor._version
    if tensor.device.type == "cpu":
        return version, tensor.tolist()
    return None if version is None else (version,)


def _check_lengths(cu_seqlens_q, cu_seqlens_k):
    if cu_seqlens_q is cu_seqlens_k:
        return
    both = cu_seqlens_q, cu_seqlens_k
    states = [state_of(tensor) for tensor in both]
    if _equal and None not in states and all(was() is tensor for was, tensor in zip(_equal[0], both)) and _equal[1] == states:
        return
    if cu_seqlens_q.tolist() != cu_seqlens_k.tolist():
        raise ValueError("cu_seqlens_q and cu_seqlens_k differ: cross attention is not served, and pieces of documents that "
                         "are cut over ranks are given as distca.pieces makes them")
    _equal[:] = [weakref.ref(tensor) for tensor in both], states


def _check_tensors(q, k, v, cu_seqlens_q, cu_seqlens_k):
    for name, tensor in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is of type {type(tensor).__name__}: a tensor, and all layers of a forward get the same "
                             "cu_seqlens_q")
    _check_plain(q, k, v)
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q is on {q.device}: attention is served on the CPU and on CUDA devices")
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if tensor.device.type != "cpu" and tensor.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {tensor.device}: there or on the CPU")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {tensor.device}: one device for all three")
        if tensor.dim() != 3:
            raise ValueError(f"{name} has shape {list(tensor.shape)}: [tokens, heads, head_dim]")
        if tensor.dtype != q.dtype:
            raise ValueError(f"q is {q.dtype} and {name} is {tensor.dtype}: one dtype for all three")
        if tensor.shape[0] != q.shape[0]:
            raise ValueError(f"q has {q.shape[0]} tokens and {name} has {tensor.shape[0]}: as many, since cross "
                             "attention is not served")
        if not 0 < tensor.shape[2] <= _MOST_HEAD_DIM:
            raise ValueError(f"head_dim of {name} is {tensor.shape[2]}: 1 to {_MOST_HEAD_DIM}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise ValueError(f"q is {q.dtype}: torch.float32, torch.bfloat16 or torch.float64")
    if k.shape[1] != v.shape[1] or q.shape[1] % max(k.shape[1], 1) != 0 or k.shape[1] == 0 or q.shape[1] == 0:
        raise ValueError(f"{q.shape[1]}, {k.shape[1]} and {v.shape[1]} heads of q, k and v: the first a multiple of the others")
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"head_dim of q is {q.shape[2]} and of k {k.shape[2]}: equal")


def _check_plain(*tensors):
    """Attention has one backward, and numbers that lie in memory."""
    in_forward_mode = forward_ad._current_level >= 0
    for tensor in tensors:
        refuse(
            (torch._C._functorch.is_functorch_wrapped_tensor(tensor),
             "attention within torch.func (grad, jvp, vmap) is not served: it has a backward, and no other transform"),
            (in_forward_mode and forward_ad.unpack_dual(tensor).tangent is not None,
             "forward-mode differentiation of attention is not served: it has a backward alone"),
            (tensor.layout != torch.strided, f"a tensor of layout {tensor.layout}: torch.strided"),
        )


def _window_left(causal, window_size) -> int:
    try:
        sides = (-1, -1) if window_size is None else window_size
        left, right = (-1 if side is None else operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise ValueError(f"window_size = {window_size!r}: (left, right), how many keys a query sees before and after its "
                         "own, -1 or None for all") from None
    if not causal and right != 0:
        raise ValueError("attention that is not causal is not served: causal=True")
    return left if 0 <= left < _MOST_WINDOW else -1


def _scale_of(softmax_scale, q) -> float:
    if softmax_scale is None:
        return q.shape[2] ** -0.5
    if getattr(softmax_scale, "requires_grad", False):
        raise ValueError("softmax_scale requires a gradient, which attention does not give: multiply q by it")
    try:
        scale = float(softmax_scale)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"softmax_scale = {softmax_scale!r}: a number, or None for 1 / sqrt(head_dim)") from None
    most = torch.finfo(torch.float64 if q.dtype == torch.float64 else torch.float32).max
    if scale == 0 or not abs(scale) <= most:
        what = "another number" if scale == 0 else f"a finite number, at most {most:.3g}"
        raise ValueError(f"softmax_scale = {softmax_scale}: {what}, or None for 1 / sqrt(head_dim)")
    return scale


def _whole(name, value) -> int:
    """Of 0 or more."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} = {value!r}: an integer") from None
    if not 0 <= whole < 2**63:
        raise ValueError(f"{name} = {value}: 0 or more" if whole < 0 else f"{name} = {value}: below 2**63")
    return whole


def is_checkpointed() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return bool(hooks) and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


def in_pieces(cu_seqlens) -> bool:
    """Whether it says the pieces of a rank's rows, else its documents are whole."""
    return cu_seqlens.dim() == 2


def documents_of(cu_seqlens, tokens=None, state=None) -> list:
    """The numbers of this rank's documents as of `state`, in a row; `tokens` are its rows, if that is known.

    They are [documents + 1], or [3 * pieces]. Raises ValueError.
    """
    has_integers = not cu_seqlens.is_floating_point() and not cu_seqlens.is_complex() and cu_seqlens.dtype != torch.bool
    if not has_integers or cu_seqlens.dim() not in (1, 2) or in_pieces(cu_seqlens) and cu_seqlens.shape[1] != 3:
        raise ValueError(f"cu_seqlens_q has shape {list(cu_seqlens.shape)} of {cu_seqlens.dtype}: [documents + 1] of integers, "
                         "or [pieces, 3]")
    places = state[1] if state and len(state) > 1 else cu_seqlens.tolist()
    if in_pieces(cu_seqlens):
        return _checked_pieces(places, tokens)
    if not places or places[0] != 0 or any(b < a for a, b in zip(places, places[1:])):
        raise ValueError("cu_seqlens_q begins with 0 and never descends")
    if tokens is not None and places[-1] != tokens:
        raise ValueError(f"cu_seqlens_q ends with {places[-1]}, q has {tokens} tokens")
    return places


def _checked_pieces(pieces, tokens) -> list:
    for document, begin, end in pieces:
        if not 0 <= begin <= end:
            raise ValueError(f"a piece of document {document} has tokens {begin} to {end}: 0 or more, and ascending")
    rows = sum(end - begin for _, begin, end in pieces)
    if tokens is not None and rows != tokens:
        raise ValueError(f"the pieces of cu_seqlens_q have {rows} tokens, q has {tokens}")
    return [number for piece in pieces for number in piece]


@dataclass(frozen=True)
class Served:
    """What `attention` was asked for, in the types of the operators."""

    window_left: int
    scale: float
    trains: bool  # gradients are wanted
    is_shared: bool  # all ranks compute together
    layer: int  # -1: none
    linear_work: int


def checked(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, group, layer, linear_work,
            kernel) -> Served:
    """Of the arguments of `attention`. Raises ValueError. Where documents begin, `documents_of` checks."""
    _check_tensors(q, k, v, cu_seqlens_q, cu_seqlens_k)
    _check_lengths(cu_seqlens_q, cu_seqlens_k)
    window_left, scale = _window_left(causal, window_size), _scale_of(softmax_scale, q)
    number = -1 if layer is None else _whole("layer", layer)
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    is_shared = trains or in_pieces(cu_seqlens_q)
    if is_shared:
        resolved(group)
        if cu_seqlens_q.is_inference() and (trains or cu_seqlens_q.device.type != "cpu"):
            raise ValueError("cu_seqlens_q was made in inference_mode and gradients are on: make it outside (clone)" if trains
                             else "pieces on a device were made in inference_mode: make them outside, or on the CPU")
    if trains:
        if layer is None and (torch._C._current_graph_task_id() != -1 or is_checkpointed()):
            raise ValueError(_UNNAMED)
    elif not torch.is_grad_enabled():
        refuse_reentrant_checkpoint()
    work = _whole("linear_work", linear_work)
    _check_kernel(kernel, q, k, v)
    return Served(window_left, scale, trains, is_shared, number, work)


def _check_kernel(kernel, q, k, v):
    refuse(
        (kernel not in KERNELS, f"kernel = {kernel!r}: one of {', '.join(KERNELS)}"),
        (kernel in ("cpu", "reference") and q.is_cuda, f"kernel = {kernel!r} computes on the CPU, and q is on {q.device}"),
        (kernel == "cpu" and q.dtype == torch.float64, "kernel = 'cpu' computes torch.float32 and torch.bfloat16, not torch.float64"),
        (kernel == "fa4" and not q.is_cuda, "kernel = 'fa4' computes on a CUDA device, and q is on the CPU"),
        (kernel == "fa4" and q.dtype != torch.bfloat16, f"kernel = 'fa4' computes torch.bfloat16, and q is {q.dtype}"),
    )
    if kernel == "fa4" and (reason := why_not(q, k, v)):
        raise ValueError(reason)


def refuse_extras(dropout_p=0.0, softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
                  block_table=None):
    """Raises ValueError for what flash-attention has and `attention` does not."""
    refuse(
        (dropout_p not in (None, 0), f"dropout_p = {dropout_p}: dropout is not served"),
        (softcap not in (None, 0), f"softcap = {softcap}: softcap is not served"),
        (alibi_slopes is not None, "alibi_slopes: ALiBi is not served"),
        (block_table is not None, "block_table: a paged cache of keys is not served"),
    )


def refuse(*refusals):
    """refusals: (whether it is asked for, the line that says so). Raises ValueError with the first line that holds."""
    for wrong, line in refusals:
        if wrong:
            raise ValueError(line)


def can_run(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, *, softmax_scale=None, causal=True,
            window_size=(-1, -1), group=None, layer=None, linear_work=0, kernel="auto", **extras) -> Answer:
    """Whether `attention` serves these arguments here and now, and if not, why. It sends nothing and computes nothing.

    The arguments are those of `attention`; `extras` are those of `flash_attn_varlen_func` besides: dropout_p, softcap,
    alibi_slopes, deterministic, return_attn_probs, block_table. Returns an object that is true or false and has a
    `reason`: the line of the ValueError that the call would raise. What only other ranks know, it does not ask them, and what
    is found while FlashAttention 4's kernels are compiled or loaded, it does not know.

        if not (answer := distca.can_run(q, k, v, cu_seqlens, cu_seqlens)): print(answer.reason)
    """
    try:
        refuse_extras(**extras)
        checked(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, group, layer, linear_work, kernel)
        documents_of(cu_seqlens_q, q.shape[0])
    except ValueError as refusal:
        return Answer(str(refusal))
    return Answer("")
