"""distca.attention as the core attention of a Megatron-Core model.

    import distca.megatron
    spec = distca.megatron.use(get_gpt_layer_local_spec(...))

Ranks that share their attention are those of Megatron's data-parallel group, context-parallel ranks among them: with
tensor parallelism each rank balances its own heads, with pipeline parallelism each stage its own layers. All ranks of
that group call the model equally often.

Documents. With `packed_seq_params` (qkv_format "thd"), `cu_seqlens_q` says where they begin. The layers of one forward
share one plan because they get the same tensor, so each micro-batch has a `cu_seqlens_q` of its own. Where
`cu_seqlens_q_padded` says that room is left behind them, O is 0 there. Without `packed_seq_params`, each of the b
sequences of [s, b, ...] is a document of s tokens.

Context parallelism. Megatron gives each of the CP ranks two of 2 CP chunks of each document, or of each sequence, whose
length is a multiple of 2 CP. `cu_seqlens_q` is that of the documents before they were cut. `cp_comm_type` is not read.

Recomputation. Attention keeps its Q, K, V and O for backward, and none of its scores. So recomputing `core_attn` saves
nothing here: what is kept is returned, and nothing is sent or computed again.

Gradients off. Every rank computes alone and sends nothing; Megatron's static inference contexts are served. Under
context parallelism, all ranks compute together then, too: they evaluate equally often, and without a cache of keys.

Errors. ValueError, in one line and before anything is sent, names what is not served. Threads. As `distca.attention`.
"""

import contextvars
import copy
import sys
from dataclasses import dataclass, fields, is_dataclass
from weakref import WeakKeyDictionary

from distca._versions import require

require("megatron.core")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel.random import is_checkpointing  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.transformer.module import MegatronModule  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.utils import is_layer_window_attention  # noqa: E402
from torch.utils.weak import WeakIdKeyDictionary  # noqa: E402

from distca._attention import attention  # noqa: E402
from distca._megatron_context import context_of, is_room, pieces_at, pieces_of  # noqa: E402
from distca._served import is_checkpointed, refuse  # noqa: E402

__all__ = ["use", "CoreAttention"]

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)
_RECOMPUTES = "Megatron recomputes it by reentrant checkpointing, which sends nothing in forward"


def use(spec):
    """A copy of a layer's spec, of a list of them, or of a block's submodules, whose core attention is `CoreAttention`.

    The given spec stays as it is, and so does a core attention with parts of its own (DSA's) beside others: 0.19's stack of
    hybrid models has it for layers that few models have. Raises ValueError if there is no other core attention.
    """
    replaced, others = [], []
    made = _replaced(spec, replaced, others)
    refuse(
        (not replaced and bool(others), f"core_attention of the spec is {others[0] if others else ''} with parts of its own: another model"),
        (not replaced, f"{type(spec).__name__} has no core_attention: give the spec of a layer or of a block"),
    )
    return made


def _replaced(part, replaced, others):
    """A copy of this part of a spec. The lists get its core attentions, and the names of those that stay."""
    if isinstance(part, (list, tuple)):
        return type(part)(_replaced(one, replaced, others) for one in part)
    if isinstance(part, type) or not is_dataclass(part):
        return part
    made = copy.copy(part)
    for name in (one.name for one in fields(part)):
        old = getattr(part, name)
        if name != "core_attention":
            setattr(made, name, _replaced(old, replaced, others))
        elif isinstance(old, ModuleSpec) and old.submodules is not None:
            others.append(getattr(old.module, "__name__", old.module))
        else:
            replaced.append(old)
            setattr(made, name, CoreAttention)
    return made


def _check_config(config):
    granularity, dropout, cp = config.recompute_granularity, config.attention_dropout, config.context_parallel_size
    layout = getattr(config, "attention_cp_layout", "zigzag")  # 0.19 and older ones know no other
    arguments = getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)
    cuts_rows = getattr(arguments, "dataloader_inter_document_masking", False) and not getattr(arguments, "sft", False)
    offloads = config.fine_grained_activation_offloading and "core_attn" in config.offload_modules
    refuse(
        (dropout != 0,
         f"attention_dropout = {dropout} (TransformerConfig's default is 0.1): dropout is not served, set 0"),
        (getattr(config, "hybrid_context_parallel", False),
         "hybrid_context_parallel = True is not served: context_parallel_size ranks have a part of each document"),
        (cp > 1 and config.mtp_num_layers,
         f"mtp_num_layers = {config.mtp_num_layers} with context_parallel_size = {cp} is not served: it shifts tokens across "
         "the parts of a document"),
        (cp > 1 and cuts_rows, f"--dataloader-inter-document-masking with context_parallel_size = {cp} is not served: Megatron's "
                               "scripts cut packed rows whole then, not each document"),
        (cp > 1 and layout != "zigzag", f"attention_cp_layout = {layout!r}: 'zigzag'"),
        (config.fp16, "fp16 = True: float16 is not served, but bfloat16 and float32 are"),
        (config.fp8, f"fp8 = {config.fp8!r}: fp8 is not served"),
        (config.fp4, f"fp4 = {config.fp4!r}: fp4 is not served"),
        (config.softmax_type != "vanilla",
         f"softmax_type = {config.softmax_type!r}: attention sinks are not served, set 'vanilla'"),
        (config.qk_clip or config.log_max_attention_logit, "qk_clip: attention returns no greatest score"),
        (granularity == "full",
         f"recompute_granularity = 'full' is not served: {_RECOMPUTES}; set 'selective'"),
        (getattr(config, "cuda_graph_impl", "none") != "none",
         f"cuda_graph_impl = {config.cuda_graph_impl!r}: the host takes part in each exchange, which a CUDA graph would not replay"),
        (offloads, "offload_modules has 'core_attn': attention keeps its own Q, K and V for backward"),
    )


def _group_of(pg_collection, is_cut):
    """The data-parallel group, which the layers are handed or which Megatron's parallel state knows. None: no other rank.

    is_cut: documents are cut over context-parallel ranks, which it has as well then.
    """
    for name in ("dp_cp",) if is_cut else ("dp", "dp_cp"):  # without context-parallel ranks, these two are one
        if getattr(pg_collection, name, None) is not None:
            return getattr(pg_collection, name)
    if parallel_state.model_parallel_is_initialized():
        return parallel_state.get_data_parallel_group(with_context_parallel=is_cut)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(f"there is no data-parallel group: give pg_collection one as {'dp_cp' if is_cut else 'dp'}, or "
                         "initialize_model_parallel")
    return None


def _groups_of(pg_collection, cp):
    """(the ranks that share attention, the Context that their documents are cut over, or None)."""
    if cp == 1:
        return _group_of(pg_collection, False), None
    group = getattr(pg_collection, "cp", None)
    if group is None and parallel_state.model_parallel_is_initialized():
        group = parallel_state.get_context_parallel_group()
    found = 0 if group is None else group.size()
    if found != cp:
        raise ValueError(f"context_parallel_size = {cp}, and the context-parallel group has {found or 'no'} ranks: give "
                         "pg_collection one as cp, or initialize_model_parallel")
    shared = _group_of(pg_collection, True)
    return shared, context_of(group, shared)


@dataclass(frozen=True)
class _Unpacked:
    """The forward without packed_seq_params whose layers come one after another."""

    layer: int  # the last one that came
    shape: tuple  # (s, b, Context)
    cu_seqlens: torch.Tensor


_latest = contextvars.ContextVar("_latest", default=None)  # _Unpacked: each thread and each coroutine has its own
_checked = WeakIdKeyDictionary()  # attention masks that were found to hide nothing else -> their versions, and as what
_kept = WeakKeyDictionary()  # CoreAttention -> {query: [(inputs, O)]} of calls that Megatron will make again in backward


def _cu_seqlens_of_rows(layer, s, b, context=None) -> torch.Tensor:
    """[b + 1] of b documents of s tokens, or their pieces in a context: one tensor for the layers of a forward.

    These come in ascending order.

    Megatron hands the layers nothing that belongs to their forward alone, so a forward is a run of successive layers.
    With interleaved stages, those of another micro-batch may come between them: `_of_rows` refuses that.
    """
    last = _latest.get()
    if last is not None and last.layer + 1 == layer and last.shape == (s, b, context):
        cu_seqlens = last.cu_seqlens
    elif context is not None:
        cu_seqlens = pieces_at([s * i for i in range(b + 1)], context)
    else:
        cu_seqlens = torch.arange(b + 1, dtype=torch.int32, device="cpu") * s
    _latest.set(_Unpacked(layer, (s, b, context), cu_seqlens))
    return cu_seqlens


def _is_causal(mask, s, context):
    """Whether it is the causal mask [..., s, s] of whole sequences, or those of its rows that this rank has."""
    if mask.dtype != torch.bool or mask.dim() < 2 or mask.shape[-1] != s:
        return False
    keys = torch.arange(s, device=mask.device)
    queries = keys if context is None or mask.shape[-2] == s else context.positions(s).to(mask.device)
    return mask.shape[-2] == queries.numel() and bool((mask == (keys > queries[:, None])).all())


def _check_mask(mask, s, ones_are_ignored, context=None):
    """Refuses a mask that hides more or less than keys behind their query. True hides; a mask of nothing else says nothing.

    s: of whole sequences, of which a mask may be the causal one; None: none may. ones_are_ignored: as Megatron's kernels do
      with a mask where they make the causal one themselves.
    """
    if mask is None:
        return
    # None: nobody can tell whether it was written to. On the CPU, numpy writes and leaves the version as it was.
    found = (None if mask.is_inference() or mask.device.type == "cpu" else
             (mask._version, s, ones_are_ignored, context))
    if found and _checked.get(mask) == found:
        return
    is_causal = s is not None and _is_causal(mask, s, context)
    if not is_causal and not (ones_are_ignored and mask.bool().all()):
        raise ValueError("attention_mask beside packed_seq_params: pass attention_mask=None" if s is None else
                         "attention_mask is not the causal one: padding is not served, and documents are given by "
                         "packed_seq_params with qkv_format = 'thd'")
    if found:
        _checked[mask] = found


def _padded(packed):
    """packed's cu_seqlens_q_padded if it leaves room behind documents, else None."""
    cu_seqlens, found = packed.cu_seqlens_q, None
    for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        padded = getattr(packed, name)
        if padded is None or padded is cu_seqlens or padded is found or torch.equal(padded, cu_seqlens):
            continue
        if found is None and name == "cu_seqlens_q_padded" and padded.shape == cu_seqlens.shape and bool(
                (padded.diff() >= cu_seqlens.diff()).all()):
            found = padded
        elif found is None or not torch.equal(padded, found):
            raise ValueError(f"packed_seq_params.{name} does not fit cu_seqlens_q: a place for each document, room behind "
                             "it, and the same for queries and keys")
    return found


def _is_room(cu_seqlens, padded, tokens):
    """[tokens] Whether a token belongs to no document."""
    places = padded[:-1].repeat_interleave(padded.diff(), output_size=tokens)
    lengths = cu_seqlens.diff().repeat_interleave(padded.diff(), output_size=tokens)
    return torch.arange(tokens, device=padded.device) - places >= lengths


class _Kept(torch.autograd.Function):
    """O of a call that is there, as a function of inputs that Megatron has made again."""

    @staticmethod
    def forward(ctx, kept, *_):  # (inputs, O): in a tuple, so that the graph of O is none of this one's
        ctx.inputs, ctx.o = kept
        return ctx.o.detach()

    @staticmethod
    def backward(ctx, gradient):
        needed = [x for x in ctx.inputs if x.requires_grad]
        found = iter(torch.autograd.grad(ctx.o, needed, gradient))
        return None, *(next(found) if x.requires_grad else None for x in ctx.inputs)


class CoreAttention(MegatronModule):
    """Causal self-attention with Megatron's constructor and call. It has no parameters."""

    def __init__(self, *, config, layer_number, attn_mask_type, attention_type, attention_dropout=None,
                 softmax_scale=None, k_channels=None, v_channels=None, cp_comm_type=None, pg_collection=None):
        """k_channels, v_channels and cp_comm_type are not read: Q, K and V say the first two.

        Raises ValueError in one line about what is not served.
        """
        super().__init__(config=config)
        _check_config(config)
        refuse(
            (attention_type == "cross", "cross attention is not served"),
            (attn_mask_type not in _CAUSAL, f"attn_mask_type = {attn_mask_type}: causal or padding_causal"),
            (attention_dropout, f"attention_dropout = {attention_dropout}: dropout is not served"),
        )
        window = config.window_size
        if not is_layer_window_attention(window, config.window_attn_skip_freq, layer_number):
            window = (-1, 0)
        if window[1] > 0:
            raise ValueError(f"window_size = {tuple(window)}: no query sees keys behind it, (W, 0)")
        self.layer_number = layer_number
        self.attn_mask_type = attn_mask_type
        self.recomputes = config.recompute_granularity == "selective" and "core_attn" in config.recompute_modules
        self.softmax_scale = softmax_scale
        self.window_left = window[0]
        self.group, self.context = _groups_of(pg_collection, config.context_parallel_size)

    def forward(self, query, key, value, attention_mask, /, *, attn_mask_type=None, attention_bias=None,
                packed_seq_params=None):
        """O [s, b, heads * head_dim], or [t, heads * head_dim] with packed_seq_params.

        query, key, value: [s, b, heads, head_dim], or [t, heads, head_dim] with packed_seq_params; key and value may
          have fewer heads.
        attention_mask: None, or without packed_seq_params the causal mask [..., s, s], in which True hides a key, or a mask
          of ones, which Megatron's kernels ignore as well. Under context parallelism, s of it is that of whole sequences,
          and it may be the rows [..., s / CP, s] of this rank, as Megatron cuts it.
        """
        inputs = query, key, value
        given = dict(attn_mask_type=attn_mask_type, attention_bias=attention_bias, packed_seq_params=packed_seq_params)
        if not is_checkpointing():
            return self._forward(*inputs, attention_mask, **given)
        if torch.is_grad_enabled():
            return self._again(*inputs)
        if not self.recomputes and not all(x.requires_grad for x in inputs):  # they are made within what is checkpointed
            raise ValueError(f"attention under tensor_parallel.checkpoint is not served: {_RECOMPUTES}")
        if not any(x.requires_grad for x in inputs):
            return self._forward(*inputs, attention_mask, **given)
        kept = [x.detach().requires_grad_() for x in inputs]  # MLA pads V within what is checkpointed: it seems to need none
        with torch.enable_grad():
            o = self._forward(*kept, attention_mask, **given)
        of_query = _kept.setdefault(self, WeakIdKeyDictionary()).setdefault(query, [])
        of_query.append((kept, o))
        return o.detach()

    def _again(self, query, key, value):
        """O of these inputs, which Megatron's checkpointing has computed before."""
        inputs = query, key, value
        kept = [one for of_query in _kept.get(self, {}).values() for one in of_query
                if all(was.shape == x.shape for was, x in zip(one[0], inputs))
                and all(was.data_ptr() == x.data_ptr() for was, x in zip(one[0][:2], inputs))]
        same = [one for one in kept if one[0][2].data_ptr() == value.data_ptr()]
        if same or len(kept) == 1:  # V may be made again within what is checkpointed
            return _Kept.apply((same or kept)[-1], *inputs)
        raise ValueError(f"attention under tensor_parallel.checkpoint is not served: {_RECOMPUTES}")

    def _forward(self, query, key, value, attention_mask, attn_mask_type, attention_bias, packed_seq_params):
        trains = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        if attention_bias is not None:
            raise ValueError("attention_bias is not served")
        if not trains and packed_seq_params is None and key.shape[0] != query.shape[0]:
            return self._of_cached_keys(query, key, value)
        decodes = not trains and query.shape[0] == 1  # the only token sees itself, masked or not
        if attn_mask_type is not None and attn_mask_type not in _CAUSAL and not decodes:
            raise ValueError(f"attn_mask_type = {attn_mask_type}: causal or padding_causal")
        ones_are_ignored = packed_seq_params is not None or (attn_mask_type or self.attn_mask_type) == AttnMaskType.causal
        if not decodes:
            s = self._length_of_rows(query) if packed_seq_params is None else None
            _check_mask(attention_mask, s, ones_are_ignored, self.context)
        if packed_seq_params is not None:
            return self._of_packed(query, key, value, packed_seq_params)
        return self._of_rows(query, key, value, trains)

    def _attend(self, query, key, value, cu_seqlens_q, cu_seqlens_k):
        """[tokens, heads * head_dim]"""
        o = attention(query, key, value, cu_seqlens_q, cu_seqlens_k, softmax_scale=self.softmax_scale,
                      window_size=(self.window_left, 0), group=self.group, layer=self.layer_number - 1)
        return o.flatten(1)

    def _check_packed(self, packed):
        """Raises ValueError for parameters that say what is not served."""
        cp, group, local_cp = self.config.context_parallel_size, packed.cp_group, packed.local_cp_size
        refuse(
            (packed.qkv_format != "thd",
             f"packed_seq_params.qkv_format = {packed.qkv_format!r}: 'thd', or no packed_seq_params"),
            (packed.cu_seqlens_q is None, "packed_seq_params.cu_seqlens_q is None: [documents + 1]"),
            (local_cp is not None and (cp > 1 or local_cp > 1),
             f"packed_seq_params.local_cp_size = {local_cp} is not served: all documents are cut over context_parallel_size = "
             f"{cp} ranks"),
            (group is not None and self.context is None and group.size() > 1,
             "packed_seq_params.cp_group has several ranks, and context_parallel_size = 1: as many"),
            (group is not None and self.context is not None and tuple(dist.get_process_group_ranks(group)) != self.context.ranks,
             "packed_seq_params.cp_group is another group than that of the layer: None, or that one"),
        )

    def _of_packed(self, query, key, value, packed):
        self._check_packed(packed)
        cu_seqlens = packed.cu_seqlens_q
        cu_seqlens_k = cu_seqlens if packed.cu_seqlens_kv is None else packed.cu_seqlens_kv
        padded = _padded(packed)
        if padded is None and self.context is None:
            return self._attend(query, key, value, cu_seqlens, cu_seqlens_k)
        if cu_seqlens_k is not cu_seqlens and not torch.equal(cu_seqlens_k, cu_seqlens):
            raise ValueError("cu_seqlens_q and cu_seqlens_kv differ: cross attention is not served")
        places = cu_seqlens if padded is None else padded
        held = places if self.context is None else pieces_of(places, self.context)
        o = self._attend(query, key, value, held, held)
        if padded is None:
            return o
        # No token of a document sees the room behind it.
        room = _is_room(cu_seqlens, padded, o.shape[0]) if self.context is None else is_room(cu_seqlens, held)
        return o.masked_fill(room[:, None].to(o.device), 0)

    def _length_of_rows(self, query):
        """s of whole sequences."""
        if self.context is None:
            return query.shape[0]
        s = query.shape[0] * self.context.size
        if s % self.context.chunks != 0:
            raise ValueError(f"sequences of {s} tokens under context_parallel_size = {self.context.size}: a multiple of "
                             f"{self.context.chunks}")
        return s

    def _of_rows(self, query, key, value, trains):
        interleaved = self.config.virtual_pipeline_model_parallel_size or 1
        refuse(
            ((trains or self.context is not None) and interleaved > 1,
             f"virtual_pipeline_model_parallel_size = {interleaved} needs packed_seq_params with qkv_format = 'thd'"),
            (trains and is_checkpointed(),
             "attention under torch.utils.checkpoint needs packed_seq_params with qkv_format = 'thd'"),
        )
        s, b = query.shape[:2]
        rows = [x.transpose(0, 1).flatten(0, 1) for x in (query, key, value)]
        cu_seqlens = _cu_seqlens_of_rows(self.layer_number, self._length_of_rows(query), b, self.context)
        return self._attend(*rows, cu_seqlens, cu_seqlens).view(b, s, -1).transpose(0, 1).contiguous()

    def _of_cached_keys(self, query, key, value):
        """Inference: `query` are the last of the tokens whose keys a cache holds."""
        if self.context is not None:
            raise ValueError(f"a cache of keys under context_parallel_size = {self.context.size} is not served")
        keys = torch.arange(key.shape[0], device="cpu")
        at = keys[key.shape[0] - query.shape[0] :, None] - keys[None]
        seen = (at >= 0) & (at <= self.window_left) if self.window_left >= 0 else at >= 0
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        o = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen.to(q.device), scale=self.softmax_scale, enable_gqa=True)
        return o.permute(2, 0, 1, 3).flatten(2)
