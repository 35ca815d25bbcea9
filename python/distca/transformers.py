"""distca.attention in an unmodified causal language model of Hugging Face's Transformers.

    import distca.transformers
    distca.transformers.attach(model, nano_batches=2)

Documents. Attention stays within documents. They are taken from `cu_seq_lens_q` if the call of the model has it
(DataCollatorWithFlattening(return_flash_attn_kwargs=True)), else from `position_ids`: a document begins where positions
do not ascend by one. Without either, each row of the batch is a document. They are found once in each forward, and the
layers of that forward share them and the plans made of them.

Gradients on. All ranks of the group call the model equally often. A rank whose batch is empty ([1, 0] tokens) computes
one token of padding, whose outputs are dropped: it serves the other ranks, and its gradients are zeros.

Gradients off. Every rank computes alone and sends nothing. With a KV cache (generation) or padding, the model computes
what it computes with attn_implementation="sdpa".

Errors. ValueError, in one line and before anything is sent, names what is not served. Threads. As `distca.attention`.
"""

import functools
import inspect
import sys
import types
from dataclasses import dataclass

from distca._versions import require_transformers

require_transformers()

import torch  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402
from transformers.masking_utils import sdpa_mask  # noqa: E402

from distca._attention import attention  # noqa: E402
from distca._nano_batches import parts_of, run_in_parts  # noqa: E402
from distca._ping_pong import require_greenlet  # noqa: E402
from distca._served import refuse  # noqa: E402

__all__ = ["attach", "cu_seqlens_of"]

_NAME = "distca"
_MASK_OF_DOCUMENTS = torch.empty(0, 1, 1, 1, dtype=torch.bool)  # models hand on a mask of four dimensions as it is


@dataclass(frozen=True, eq=False)
class _Documents:
    """What the layers of one forward share. It travels through the model as a keyword argument."""

    cu_seqlens: torch.Tensor  # [documents + 1]
    attached: "_Attached"


@dataclass(frozen=True)
class _Attached:
    nano_batches: int
    group: object
    linear_work: int  # as in distca.attention


_AHEAD = "distca_ahead"  # the item of a batch that is planned ahead: its tensors may be copied on their way


class _Ahead:
    """The parts of a batch that is planned ahead, for one forward."""

    def __init__(self, parts):
        self._parts = parts

    def take(self):
        parts, self._parts = self._parts, None
        return parts


def attach(model: PreTrainedModel, nano_batches: int = 1, group=None) -> None:
    """Makes `model` compute its attention with distca.attention. Its weights and its state dict stay as they are.

    Call it once, after the model is made and before DDP, a Trainer or an Accelerator gets it; with FSDP2, before or
    after fully_shard.

    model: a causal language model that uses Transformers' attention interface, and supports sdpa and flash attention.
    nano_batches: 2 lets a forward with gradients deal this rank's documents to two nano-batches, so that the messages
      of one travel while the other computes. Loss, logits and gradients are those of the whole batch. Where the loss is
      the mean of a rank's targets and it has none, it is 0.
    group: a process group or a DeviceMesh of one dimension; None for all ranks, or for this process if there are none.

    Raises ValueError that says why a model cannot be served, and ImportError where nano_batches=2 lacks greenlet. The
    model is then as it was.
    """
    _check_model(model)
    if nano_batches not in (1, 2):
        raise ValueError(f"nano_batches = {nano_batches}: 1 or 2")
    if nano_batches == 2:
        require_greenlet()
    attached = _Attached(nano_batches, group, _linear_work(model) if nano_batches == 2 else 0)
    model.set_attn_implementation(_NAME)
    inner = model.forward.__func__  # copies of the model are attached, too

    @torch.compiler.disable(recursive=False)  # it reads the batch; the model's own forward is compiled
    def forward(self, *arguments, **keywords):
        return _forward(self, inner, attached, *arguments, **keywords)

    functools.update_wrapper(forward, inner)
    del forward.__wrapped__  # Accelerate would unwrap it
    forward.__signature__ = inspect.signature(inner)  # Trainer and generate read it
    forward.distca = attached
    model.forward = types.MethodType(forward, model)


def cu_seqlens_of(model: PreTrainedModel):
    """What distca.plan_ahead takes as `cu_seqlens`, so that batches of an attached model are planned one ahead.

        for batch in distca.plan_ahead(loader, distca.transformers.cu_seqlens_of(model)):

    The function that it returns takes a batch, a dictionary of what the model is called with. It adds an item to it,
    which must reach the model: model(**batch). All ranks do alike.
    """
    if not hasattr(model.forward, "distca"):
        raise ValueError(f"this {type(model).__name__} is not attached: distca.transformers.attach(model)")
    attached = model.forward.distca

    def of_batch(batch):
        tokens = _tokens_of(batch)
        if tokens is None:
            raise ValueError("the batch has neither input_ids nor inputs_embeds: what the model is called with")
        parts = parts_of(tuple(tokens.shape[:2]), batch, attached.nano_batches)
        batch[_AHEAD] = _Ahead(parts)
        return [part.cu_seqlens for part in parts]

    return of_batch


def _linear_work(model) -> int:
    """Multiply-adds of a layer outside of attention, for a token, as the mean of the decoder's layers.

    Counted is each weight of the decoder that has two or more dimensions and is no embedding. Of the weights of experts
    it is the share that a token meets, where the config says how many experts there are and how many a token meets.
    """
    config, decoder = model.config.get_text_config(), model.get_decoder()
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    met = getattr(config, "num_experts_per_tok", None)
    share = met / experts if met and experts else 1
    embeddings = {id(module.weight) for module in decoder.modules() if isinstance(module, torch.nn.Embedding)}
    weights = [(name, weight) for name, weight in decoder.named_parameters()
               if weight.dim() >= 2 and id(weight) not in embeddings]
    counted = sum(weight.numel() * (share if "experts" in name.split(".") else 1) for name, weight in weights)
    return int(counted) // config.num_hidden_layers


def _tokens_of(given):
    return given.get("input_ids", given.get("inputs_embeds"))


def _check_model(model):
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{name} is no model of Transformers: attach the model itself, before it is wrapped")
    if hasattr(model.forward, "distca"):
        raise ValueError(f"this {name} is attached already")
    if getattr(model.forward, "__self__", None) is not model:
        raise ValueError(f"the forward of this {name} is replaced by another one: attach the model before that")
    config = model.config
    if config.is_encoder_decoder or not model.can_generate():
        raise ValueError(f"{name} is no causal language model with a decoder alone")
    if not all(one._can_set_attn_implementation() for one in (model, model.get_decoder())
               if isinstance(one, PreTrainedModel)):
        raise ValueError(f"{name} does not use the attention interface of Transformers")
    config = config.get_text_config()
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        raise ValueError(f"{name} has attention that is not causal: it is not served")
    if not (model._supports_flash_attn and model._supports_sdpa):
        raise ValueError(f"{name} does not support both sdpa and flash attention, so it needs what is not served")
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in ("full_attention", "sliding_attention"):
            raise ValueError(f"{name} has layers of {kind}: full and sliding attention are served")


# The forward of a model.


def _forward(model, inner, attached, *arguments, **keywords):
    ahead = keywords.pop(_AHEAD, None)
    bound = inspect.signature(inner).bind(model, *arguments, **keywords)
    given = {name: value for name, value in bound.arguments.items() if value is not None}
    rest = [p.name for p in inspect.signature(inner).parameters.values() if p.kind is p.VAR_KEYWORD]
    given.update(given.pop(rest[0], {}) if rest else {})
    given.pop("self")
    tokens = _tokens_of(given)
    trains = torch.is_grad_enabled() and (
        any(p.requires_grad for p in model.parameters()) or getattr(given.get("inputs_embeds"), "requires_grad", False)
    )
    if tokens is None or (not trains and _needs_sdpa(given)):
        return inner(model, *arguments, **keywords)
    _check_call(model, given, trains)
    given.pop("attention_mask", None)
    count = attached.nano_batches if trains else 1
    if count > 1:
        _check_parts(model, given)
    if trains:
        given["use_cache"] = False

    def call(arguments, cu_seqlens):
        documents = _Documents(cu_seqlens, attached)
        return inner(model, **arguments, attention_mask=_MASK_OF_DOCUMENTS, distca_documents=documents)

    shape = tuple(tokens.shape[:2])
    parts = ahead.take() if ahead and trains else None
    if parts is None or len(parts) != count:
        parts = parts_of(shape, given, count)
    if count == 1 and len(parts[0].tokens):
        return call(given, parts[0].cu_seqlens)
    as_tuple = not given.pop("return_dict", model.config.return_dict)
    outputs = run_in_parts(call, given, shape, parts)
    return outputs.to_tuple() if as_tuple else outputs


def _is_padded(mask) -> bool:
    return isinstance(mask, torch.Tensor) and mask.dim() == 2 and not bool(mask.all())


def _needs_sdpa(given) -> bool:
    mask = given.get("attention_mask")
    other = mask is not None and getattr(mask, "ndim", 0) != 2
    return given.get("past_key_values") is not None or _is_padded(mask) or other


def _check_call(model, given, trains):
    """Raises ValueError if the arguments of a forward without a cache ask for what is not served."""
    mask = given.get("attention_mask")
    tokens = _tokens_of(given)
    dtype = next(model.parameters()).dtype
    refuse(
        (given.get("past_key_values") is not None or (trains and given.get("use_cache")),
         "a KV cache is not served in training: use_cache=False, and no past_key_values"),
        (mask is not None and getattr(mask, "ndim", 0) != 2,
         "a mask that is not [batch, tokens] is not served: say the documents with position_ids"),
        (_is_padded(mask), "padded batches are not served: pack documents with DataCollatorWithFlattening"),
        (given.get("output_attentions") or model.config.output_attentions,
         "output_attentions: attention returns no probabilities"),
        ("token_type_ids" in given, "token_type_ids may change the mask: not served"),
        (dtype == torch.float16 or torch.is_autocast_enabled(tokens.device.type)
         and torch.get_autocast_dtype(tokens.device.type) == torch.float16,
         "float16 is not served: torch.float32, torch.bfloat16 or torch.float64"),
        (_has_context_parallelism(), "context parallelism of Accelerate is on: attention is shared out already"),
    )


def _has_context_parallelism() -> bool:
    if "accelerate.state" not in sys.modules:
        return False
    config = sys.modules["accelerate.state"].AcceleratorState._shared_state.get("parallelism_config")
    return config is not None and (config.cp_enabled or config.sp_enabled)


def _check_parts(model, given):
    """Raises ValueError if the outputs of two nano-batches would not add up to those of the batch."""
    targets = given.get("labels") is not None
    if targets and model.loss_function is not ForCausalLMLoss:
        raise ValueError("nano_batches=2 adds up the losses of ForCausalLMLoss alone: nano_batches=1 for another loss")
    if given.get("output_router_logits", getattr(model.config, "output_router_logits", False)):
        raise ValueError("nano_batches=2 does not add up losses of routers: output_router_logits=False")
    keep = given.pop("logits_to_keep", 0)
    if not (isinstance(keep, int) and keep == 0):
        raise ValueError("nano_batches=2 returns all logits: logits_to_keep=0")


# What Transformers calls in a layer.


@torch.compiler.disable
def _attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
               is_causal=None, s_aux=None, distca_documents=None, **others):
    """O [batch, tokens, heads, head_dim_v] of query [batch, heads, tokens, head_dim], and None for probabilities."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    refuse(
        (dropout, f"dropout = {dropout}: dropout of attention is not served (attention_dropout=0 in the config)"),
        (softcap is not None, f"softcap = {softcap}: softcap is not served"),
        (s_aux is not None, "s_aux: attention sinks are not served"),
        (others.get("position_bias") is not None, "position_bias: a bias of scores is not served"),
        (others.get("cache") is not None, "a paged cache of keys is not served"),
        (not causal, "attention that is not causal is not served"),
        (distca_documents is None and (attention_mask is not None and attention_mask.numel() == 0),
         "the model keeps its keyword arguments from its attention: it is not served"),
        (distca_documents is None and torch.is_grad_enabled() and query.requires_grad,
         "attention is called by a model that is not attached: distca.transformers.attach(model), and call that model"),
        (distca_documents is not None and key.shape[2] != query.shape[2],
         f"{query.shape[2]} queries and {key.shape[2]} keys: cross attention is not served"),
    )
    if distca_documents is None:  # generation
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, is_causal=causal,
                                      **others)
    dtype = value.dtype
    if query.dtype == torch.float32 and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    # RoPE leaves q and k in fp32 under autocast. One row of a batch is a view.
    q, k, v = (x.transpose(1, 2).flatten(0, 1).to(dtype) for x in (query, key, value))
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)  # theirs counts the query's own key
    cu_seqlens = distca_documents.cu_seqlens
    o = attention(q, k, v, cu_seqlens, cu_seqlens, softmax_scale=scaling, window_size=window,
                  group=distca_documents.attached.group, layer=module.layer_idx,
                  linear_work=distca_documents.attached.linear_work)
    return o.unflatten(0, (query.shape[0], query.shape[2])), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)  # of a forward with a cache; without one, no mask is made
