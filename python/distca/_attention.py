"""Core attention, balanced over the ranks of a group: one call, or three whose gaps hide the messages.

Every rank gives Q, K and V of its own documents, packed one behind the other, and gets O of them. Where a rank has more
to compute than others, those compute a part of it. Tokens stay where they are, and so do RoPE, loss, data and model.

Documents are whole, or each rank has any pieces of any documents, which `distca.pieces` describes. All ranks have whole
documents, or all have pieces.

Order. All ranks of a group call the same layers in the same order, also a rank that holds no tokens.

A forward. The lengths of all ranks' documents are exchanged, and a plan is made, at the first layer of a forward. The
layers of one forward are those that get the same `cu_seqlens_q` object, until a layer comes again. What belongs to a
forward lives as long as its graph and its `cu_seqlens_q`, so several forwards may wait for their backwards.

Checkpointing. With `layer`, attention that torch.utils.checkpoint (use_reentrant=False, selective or not) calls again
within backward returns the O that is there: it neither sends nor computes. Without `layer` it is refused.

Gradients off. Attention of whole documents is computed on this rank alone and sends nothing: ranks may evaluate unequal
numbers of times. Attention of pieces is computed by all ranks together, which then evaluate equally often.

CUDA devices. All ranks give tensors on a device, each on one of its own, or all on the CPU. A layer's forward and backward
are given to the stream that is current when its forward is called. Give `cu_seqlens_q` on the CPU: one on the device makes
the host wait for the device once a forward.

torch.compile. Attention is a break of the graph: what lies before and behind it is compiled.

Errors. ValueError, in one line and before anything is sent, about arguments. RuntimeError, in one line, about another
rank or the network. Threads. One thread at a time calls attention.
"""

from dataclasses import dataclass, field, replace

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from distca._ops import ops
from distca._compiled_kernels import build_if_missing
from distca._group import name_of
from distca._ping_pong import give_way
from distca._served import checked, documents_of, in_pieces, refuse_extras, state_of

_NO_LAYER = -1
_ALONE = -2  # the rank's own attention, without a backward
_MULTIPLE = 8  # of which head_dim is for the kernels; others are padded


@dataclass
class _Forward:
    """What the layers of one forward share."""

    given: object  # the step, or the Future of one that is planned ahead
    state: tuple  # of cu_seqlens, when it was read
    has_begun: bool = True
    layers: set = field(default_factory=set)  # those that have come

    @property
    def step(self) -> torch.Tensor:
        """A handle: it owns the plans and knows the calls of the layers."""
        if not isinstance(self.given, torch.Tensor):
            self.given = self.given.result()
        return self.given

    def is_alive(self) -> bool:
        return any(ops.state_of(self.step, layer) for layer in self.layers)


# cu_seqlens -> {group's name, or None with gradients off: forwards, the latest last}. It keeps no tensor alive.
_forwards = WeakIdKeyDictionary()


@dataclass(frozen=True)
class Handle:
    """Attention of one layer under way: what `dispatch` returns and `core_attention` and `combine` take."""

    _call: torch.Tensor
    _qkv: tuple  # padded
    _head_dim_v: int  # of the caller's
    _versions: tuple  # of Q, K and V where they have gradients, to find who writes to them meanwhile

    def call(self):
        """What operators take. Raises RuntimeError if Q, K or V was written to."""
        if self._versions and self._versions != _versions_of(self._qkv):
            raise RuntimeError("q, k or v was written to in place after dispatch, which keeps them until combine")
        return self._call


def _versions_of(qkv) -> tuple:
    return tuple(one._version for one in qkv)


def _recomputed(forwards, layer) -> _Forward:
    """The forward whose layer is called again within backward."""
    for wanted in (1, 2):  # its backward is to come; it has ended, and the graph was retained
        found = [forward for forward in forwards if ops.state_of(forward.step, layer) == wanted]
        if len(found) > 1:
            raise ValueError(
                "several forwards with one cu_seqlens_q wait for their backwards under checkpointing: "
                "give each forward a cu_seqlens_q of its own (clone)"
            )
        if found:
            return found[0]
    raise ValueError("attention is recomputed and its forward is not there: checkpoint with use_reentrant=False, make cu_seqlens_q "
                     "outside of what is checkpointed, which makes another tensor when it is recomputed, and where Q, K and V of "
                     "pieces have no gradients, give the layer's input some (enable_input_require_grads of Transformers)")


def _forward_of(cu_seqlens, name, layer, begin) -> _Forward:
    """The forward that this call belongs to. All ranks find alike whether it is a new one."""
    forwards = _forwards.setdefault(cu_seqlens, {}).setdefault(name, [])
    if torch._C._current_graph_task_id() != -1:  # within a backward
        return _recomputed([forward for forward in forwards if forward.has_begun], layer)
    latest, state = forwards[-1] if forwards else None, state_of(cu_seqlens)
    if latest and not latest.has_begun and latest.state == state:
        latest.has_begun = True
    elif latest and not latest.has_begun and latest.state[0] == state[0]:  # nor do the other ranks know of it
        raise ValueError("cu_seqlens_q was written to after plan_ahead had planned it: each batch has a tensor of its own")
    elif layer == _NO_LAYER or latest is None or layer in latest.layers or latest.state != state:
        forwards[:] = [forward for forward in forwards if forward.is_alive()]
        latest = _Forward(begin(state), state)
        forwards.append(latest)
    if layer != _NO_LAYER:
        latest.layers.add(layer)
    return latest


def plan_for(cu_seqlens, name, step, state):
    """The next forward with this cu_seqlens in the group of that name takes this step, a Future of one.

    state: `state_of(cu_seqlens)` when it was planned.
    """
    forwards = _forwards.setdefault(cu_seqlens, {}).setdefault(name, [])
    forwards[:] = [forward for forward in forwards if forward.is_alive()]  # nor one that was never begun
    forwards.append(_Forward(step, state, False))


def waits_for(cu_seqlens, name) -> bool:
    """Whether a step was planned for a forward with this cu_seqlens that has not begun."""
    return any(not forward.has_begun for forward in _forwards.get(cu_seqlens, {}).get(name, []))


def _local_step(cu_seqlens, begin) -> torch.Tensor:
    """The plans of this rank's documents for itself. They belong to no forward: nothing is kept of a layer."""
    state, of = state_of(cu_seqlens), _forwards.setdefault(cu_seqlens, {})
    if state is None or None not in of or of[None].state != state:
        of[None] = _Forward(begin(state), state)
    return of[None].step


def _padded(tensor):
    missing = -tensor.shape[2] % _MULTIPLE
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


@torch.compiler.disable
def dispatch(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, softmax_scale=None, causal=True,
             window_size=(-1, -1), group=None, layer=None, linear_work=0, kernel="auto") -> Handle:
    """Sends Q, K and V on their way and returns. The arguments are those of `attention`.

    What runs until `core_attention` hides these messages, and what runs between `core_attention` and `combine` hides
    those of O. In backward, the gradients of the same work hide those of dO and of dQ, dK and dV.
    """
    served = checked(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, group, layer, linear_work,
                     kernel)
    head_dim_v, is_shared = v.shape[2], served.is_shared
    q, k, v = _padded(q), _padded(k), _padded(v)
    if kernel == "fa4":
        build_if_missing(q, k)
    with torch.no_grad(), no_dispatch():  # no operator of the model's: recomputation does not repeat it

        def begin(state):
            documents = documents_of(cu_seqlens_q, q.shape[0], state)
            return ops.begin(name, documents, in_pieces(cu_seqlens_q), q, k, v, served.scale, served.window_left, work, kernel)

        name, work, number = (name_of(group), served.linear_work, served.layer) if is_shared else ("", 0, _ALONE)
        step = _forward_of(cu_seqlens_q, name, served.layer, begin).step if is_shared else _local_step(cu_seqlens_q, begin)
    return Handle(ops.dispatch(q, k, v, step, number, served.scale, served.window_left, work, kernel), (q, k, v), head_dim_v,
                  _versions_of((q, k, v)) if served.trains else ())


@torch.compiler.disable
def core_attention(handle: Handle) -> Handle:
    """Waits for the Q, K and V of others, computes this rank's part of the layer, and sends O on its way."""
    return replace(handle, _call=ops.core_attention(handle.call()))


@torch.compiler.disable
def combine(handle: Handle) -> torch.Tensor:
    """Returns O [tokens, heads, head_dim] of this rank's tokens once all of it is there.

    It must not be written to before backward, which raises RuntimeError then.
    """
    o = ops.combine(handle.call(), *handle._qkv)
    return o if o.shape[2] == handle._head_dim_v else o[..., : handle._head_dim_v]


def _attend(*arguments) -> Handle:
    """`dispatch` and `core_attention`, giving way to other nano-batches."""
    handle = dispatch(*arguments)
    give_way()
    handle = core_attention(handle)
    give_way()
    return handle


@torch.compiler.disable
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple = (-1, -1),
    group=None,
    layer: int | None = None,
    linear_work: int = 0,
    kernel: str = "auto",
) -> torch.Tensor:
    """Causal attention within each document, of this rank's tokens, computed by all ranks of the group together.

    q: [tokens, heads, head_dim] of this rank, in float32, bfloat16 or float64, on the CPU or on a CUDA device. head_dim: at
      most 256; what is no multiple of 8 is padded with zeros. Strides are free: what is expanded, or whose last dimension
      is not contiguous, is copied. tokens may be 0.
    k: [tokens, kv_heads, head_dim]; heads is a multiple of kv_heads.
    v: [tokens, kv_heads, head_dim_v]. k and v are on the device of q.
    cu_seqlens_q: [documents + 1] integers, where each document begins, and where the last one ends. On the CPU, where its
      numbers count, whoever wrote them last; or on the device of q, for which the host waits once a forward, and where
      numbers that PyTorch does not know of (Tensor._version) are not seen. Or [pieces, 3] integers: document, begin and
      end of each run of this rank's rows, in their order. Pieces of one document have the same number on all ranks,
      which is any integer, and are cut at any token. `distca.pieces` makes them.
    cu_seqlens_k: the same, best the same tensor. Cross attention is not served.
    max_seqlen_q, max_seqlen_k: as flash-attention has them; they are not read.
    softmax_scale: what scores are multiplied with, any number but 0; None is 1 / sqrt(head_dim). It may be another one at
      every call.
    causal: True. False is served with window_size = (left, 0), which means the same.
    window_size: (left, right): how many keys before its own a query sees, -1 or None for all, as flash-attention has it.
    group: a process group or a DeviceMesh of one dimension; None for all ranks, or for this process if there are none.
    layer: a number that the model gives this layer alone. Checkpointing needs it, and with it the lengths are exchanged
      once a forward, else at every call.
    linear_work: the multiply-adds of the layer outside of attention for each token. Where it is given, ranks with fewer
      tokens compute more attention, so that all are done with both together. Give it under `ping_pong`, where linear
      work of one nano-batch runs beside the attention of the other. All ranks give the same.
    kernel: what computes, as attention.kernel of distca train (docs/kernels.md): "auto", "cpu", "aten", "reference", or
      "fa4", FlashAttention 4 on Hopper, in bfloat16. Its kernels are those that `distca kernels build` made or, where
      flash-attn-4 can be imported, are compiled at the first call, which takes a minute. All ranks give the same.

    Returns O [tokens, heads, head_dim_v] in the dtype of q. It has gradients, and they have none: whoever differentiates
    what create_graph=True gave gets a RuntimeError.
    """
    return combine(_attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, group, layer,
        linear_work, kernel,
    ))


@torch.compiler.disable
def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
    *,
    group=None,
    layer=None,
    linear_work=0,
    kernel="auto",
) -> torch.Tensor | tuple:
    """`attention` with flash-attention's arguments, in its order. None turns dropout_p, softcap and window_size off.

    What is not served is refused by name (ValueError): its default causal=False, dropout, softcap, ALiBi and block tables.
    `deterministic` is always so. `group`, `layer`, `linear_work` and `kernel` are as in `attention`.

    return_attn_probs: returns (O, LSE, None). LSE [heads, tokens] is the natural logarithm of the sum of a query's
      exponentials, in float32, or in float64 for float64. It has no gradient. There are no probabilities: None.
    """
    refuse_extras(dropout_p, softcap, alibi_slopes, deterministic, return_attn_probs, block_table)
    handle = _attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, group, layer,
        linear_work, kernel,
    )
    o = combine(handle)
    return (o, ops.lse(handle._call.detach()), None) if return_attn_probs else o
