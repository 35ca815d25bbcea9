"""distca.attention in an unmodified causal language model of Hugging Face's Transformers.

    import distca.transformers
    distca.transformers.attach(model, nano_batches=2)

Documents. Attention stays within documents. They are taken from `cu_seq_lens_q` if the call of the model has it
(DataCollatorWithFlattening(return_flash_attn_kwargs=True)), else from `position_ids`: a document begins where positions
do not ascend by one. Without either, each row of the batch is a document. They are found once in each forward, and the
layers of that forward share them and the plans made of them.

Gradients on. All ranks of the group call the model equally often. A rank whose batch is empty ([1, 0] tokens) computes
one token of padding, whose outputs are dropped: it serves the other ranks, and its gradients are zeros.

Long documents. `shard` deals the tokens of each step over the ranks, so that a document may lie on many of them.

Gradients off. But for batches of `shard`, every rank computes alone and sends nothing. With a KV cache (generation) or
padding, the model computes what it computes with attn_implementation="sdpa".

Errors. ValueError, in one line and before anything is sent, names what is not served. Threads. As `distca.attention`.
"""

import functools
import inspect
import math
import sys
import types
import warnings
from dataclasses import dataclass

from distca._versions import require

require("transformers")

import torch  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from distca._deal import DEALT, note_call_without  # noqa: E402
from distca._nano_batches import CACHES, Ahead, parts_of, positions_of, run_in_parts  # noqa: E402
from distca._ping_pong import require_greenlet  # noqa: E402
from distca._served import KERNELS, in_pieces, refuse  # noqa: E402
from distca._shard import steps, warn_of_scheduler  # noqa: E402
from distca._transformers_attention import AS_SDPA, AS_VALUES, NAME, Documents, forward_under_way, under_way  # noqa: E402
from distca._transformers_config import attention_before, give_attention_back, take_attention  # noqa: E402
from distca._transformers_shard import (  # noqa: E402
    Evaluation, base_of, check_step, dealer_of, dealt_base_of, evaluated, most_positions, own_loss_of)

__all__ = ["attach", "cu_seqlens_of", "detach", "evaluate", "shard"]


@dataclass(frozen=True)
class _Attached:
    nano_batches: int
    group: object
    linear_work: int  # as in distca.attention
    kernel: str  # likewise
    most_positions: float  # that a document has where it may be in a nano-batch
    takes_positions: bool  # whether position_ids that begin with 0 say what the decoder does without them
    before: dict  # the attention that the model's configuration and those in it had


@dataclass(frozen=True, eq=False)
class _Call:
    """A forward that is served."""

    shape: tuple  # [rows, tokens]
    parts: list  # of its documents
    trains: bool
    has_positions: bool  # whether the caller gave position_ids


_AHEAD = "distca_ahead"  # the item of a batch that is planned ahead: its tensors may be copied on their way


def attach(model: PreTrainedModel, nano_batches: int = 1, group=None, kernel: str = "auto") -> None:
    """Makes `model` compute its attention with distca.attention. Its weights and its state dict stay as they are.

    Call it once, before DDP, a Trainer or an Accelerator gets the model; with FSDP2, before or after fully_shard.

    model: a causal language model that uses Transformers' attention interface, and supports sdpa and flash attention. PEFT may
      have wrapped it, also in the calls below, or may wrap it later.
    nano_batches: 2 lets a forward with gradients deal this rank's documents to two nano-batches, so that the messages
      of one travel while the other computes. Loss, logits and gradients are those of the whole batch. Where the loss is
      the mean of a rank's targets and it has none, it is 0.
    group, kernel: as in distca.attention.

    Raises ValueError that says why a model cannot be served, and ImportError where nano_batches=2 lacks greenlet. The
    model is then as it was.
    """
    model = base_of(model)
    _check_model(model, nano_batches)
    refuse((kernel not in KERNELS, f"kernel = {kernel!r}: one of {', '.join(KERNELS)}"))
    if nano_batches == 2:
        require_greenlet()
    decoder = _decoder_of(model)
    attached = _Attached(nano_batches, group, _linear_work(model) if nano_batches == 2 else 0, kernel,
                         most_positions(model), _takes_positions(decoder), attention_before(model))
    take_attention(model, attached.before)
    _replace(decoder, _decoder_forward, attached)
    if decoder is not model:
        _replace(model, _forward, attached)


def detach(model: PreTrainedModel) -> None:
    """Gives the model back as it was before `attach`: its forward and its attention.

    Raises ValueError if it is not attached, or if another one, such as an Accelerator, has wrapped its forward since.
    """
    model = base_of(model)
    attached = attached_of(model)
    modules = [module for module in (model, _decoder_of(model)) if hasattr(module.forward, "distca")]
    if any(module.forward.__func__ is not module.forward.distca_itself for module in modules):
        raise ValueError(f"the forward of this {type(model).__name__} was wrapped after it was attached: unwrap it first")
    for module in {id(module): module for module in modules}.values():
        inner = module.forward.distca_inner
        del module.forward
        if module.forward.__func__ is not inner:  # it was replaced by another one before
            module.forward = types.MethodType(inner, module)
    give_attention_back(model, attached.before)


def _replace(module, forward_of, attached):
    """The module's forward becomes `forward_of(module, inner, signature, attached, arguments, keywords)`."""
    inner, signature = module.forward.__func__, inspect.signature(module.forward)

    @torch.compiler.disable(recursive=False)  # it reads the batch; the model's own forward is compiled
    def forward(self, *arguments, **keywords):  # copies of the model are attached, too
        return forward_of(self, functools.partial(inner, self), signature, attached, arguments, keywords)

    functools.update_wrapper(forward, inner)
    del forward.__wrapped__  # Accelerate would unwrap it
    forward.__signature__ = inspect.signature(inner)  # Trainer and generate read it
    forward.distca, forward.distca_inner, forward.distca_itself = attached, inner, forward
    module.forward = types.MethodType(forward, module)


def attached_of(model) -> _Attached:
    attached = getattr(_decoder_of(model).forward, "distca", None)
    if attached is None:
        raise ValueError(f"this {type(model).__name__} is not attached: distca.transformers.attach(model)")
    return attached


def cu_seqlens_of(model: PreTrainedModel):
    """What distca.plan_ahead takes as `cu_seqlens`, so that batches of an attached model are planned one ahead.

        for batch in distca.plan_ahead(loader, distca.transformers.cu_seqlens_of(model)):

    The function that it returns takes a batch, a dictionary of what the model is called with. It adds an item to it,
    which must reach the model: model(**batch). The batch says the same documents then, else the call raises ValueError:
    each batch has tensors of its own. All ranks do alike.
    """
    attached = attached_of(base_of(model))

    def of_batch(batch):
        tokens = _tokens_of(batch)
        if tokens is None:
            raise ValueError("the batch has neither input_ids nor inputs_embeds: what the model is called with")
        batch[_AHEAD] = ahead = Ahead(tuple(tokens.shape[:2]), batch, attached.nano_batches)
        return [part.cu_seqlens for part in ahead.parts]

    return of_batch


def shard(loader, model: PreTrainedModel | None = None, *, at_once: int | None = None, accumulate: int = 1,
          gradients: str = "mean"):
    """`distca.shard` for an attached model: a loader whose steps are dealt over the ranks, any piece of any document to each.

        for batch in distca.transformers.shard(loader, model):
            wrapped(**batch).loss.backward()  # wrapped: DDP(model), or model after fully_shard
            optimizer.step(), optimizer.zero_grad()

        distca.transformers.shard(trainer, at_once=1)  # of an attached model; then trainer.train()

    loader: yields what the model is called with. Or a Trainer (TRL's SFTTrainer is one), whose training is dealt so, and
      each batch of its evaluations over all ranks; its steps, `len`, warm-up and a resumed run count what is dealt.
    model: the attached one itself, whose group and nano-batches are taken; of a Trainer it is known.
    The other arguments, and what a batch has, are those of `distca.shard`; the pieces travel within an object. A Trainer
    accumulates by its own settings.

    Nano-batches are dealt over all ranks, each for itself. Raises ValueError for a model that mixes tokens by something
    else than attention, or whose positions a rank cannot know by its own rows, and what `distca.shard` raises.
    """
    if not hasattr(loader, "get_train_dataloader"):
        model = dealt_base_of(model)
        dealer, line = _dealer_of(model, at_once, gradients), own_loss_of(model)
        if line is not None:
            warnings.warn(f"{line}: steps have no labels, compute the loss of the logits and shift_labels", stacklevel=2)
        dealer.gives_labels = line is None  # without them, the model computes no loss
        warn_of_scheduler(dealer, loader)
        return steps(dealer, loader, accumulate)
    from distca._transformers_trainer import shard_trainer

    refuse(
        (model is not None, "model: a Trainer has its own, leave it out"),
        (accumulate != 1, f"accumulate = {accumulate}: a Trainer accumulates by its gradient_accumulation_steps"),
        (gradients != "mean", f"gradients = {gradients!r}: a Trainer takes the mean over ranks"),
    )
    model = dealt_base_of(loader.accelerator.unwrap_model(loader.model))
    dealers = _dealer_of(model, at_once, "mean"), _dealer_of(model, 1, "mean", nano_batches=1)
    for dealer in dealers:
        dealer.gives_labels = True
    return shard_trainer(loader, *dealers, model)


def evaluate(model: PreTrainedModel, loader, wrapped=None) -> Evaluation:
    """The loss of an attached model over all documents of all ranks' loaders, the same for any number of ranks.

    model: the attached one itself. It is evaluated as it is: call model.eval() before.
    loader: yields what the model is called with, labels among it. Each rank has its own, of any number of batches. Each
      batch is dealt over all ranks. A sampler that repeats samples (Accelerate's even_batches) makes them count twice.
    wrapped: what is called in the model's place, where FSDP2 or another one has wrapped it.

    Losses are summed in float64, of logits in the model's own precision, and in float32 at least. All ranks call it.
    """
    return evaluated(_dealer_of(dealt_base_of(model), 1, "sum", nano_batches=1), loader, model if wrapped is None else wrapped)


def _dealer_of(model, at_once, gradients, nano_batches=None):
    return dealer_of(model, _decoder_of(model), attached_of(model), at_once, gradients, nano_batches)


def _decoder_of(model):
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{type(model).__name__} is no model of Transformers: give the model itself, not what wraps it")
    decoder = model.get_decoder()
    return decoder if isinstance(decoder, PreTrainedModel) else model.base_model  # some call their head so


def _linear_work(model) -> int:
    """Multiply-adds of a layer outside of attention, for a token, as the mean of the decoder's layers.

    Counted is each weight of the decoder that has two or more dimensions and is no embedding. Of the weights of experts
    it is the share that a token meets, where the config says how many experts there are and how many a token meets.
    """
    config, decoder = model.config.get_text_config(), _decoder_of(model)
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


def _takes_positions(decoder) -> bool:
    """Where an embedding of positions has a token of padding, the decoder counts from behind that one by itself."""
    counts_otherwise = any(isinstance(module, torch.nn.Embedding) and module.padding_idx is not None and "position" in name
                           for name, module in decoder.named_modules())
    return "position_ids" in inspect.signature(decoder.forward).parameters and not counts_otherwise


def _check_model(model, nano_batches):
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"{name} is no model of Transformers: attach the model itself, before it is wrapped")
    if model.config.is_encoder_decoder or not model.can_generate():
        raise ValueError(f"{name} is no causal language model with a decoder alone")
    config, decoder = model.config.get_text_config(), _decoder_of(model)
    both, parameters = (model, decoder), inspect.signature(decoder.forward).parameters.values()
    kinds = [kind for kind in getattr(config, "layer_types", None) or () if kind not in ("full_attention", "sliding_attention")]
    refuse(
        (any(hasattr(one.forward, "distca") for one in both), f"this {name} is attached already"),
        (any(getattr(one.forward, "__self__", None) is not one for one in both),
         f"the forward of this {name} is replaced by another one: attach the model before that"),
        (not all(one._can_set_attn_implementation() for one in both),
         f"{name} does not use the attention interface of Transformers"),
        (getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False),
         f"{name} has attention that is not causal: it is not served"),
        (not (model._supports_flash_attn and model._supports_sdpa),
         f"{name} does not support both sdpa and flash attention, so it needs what is not served"),
        (kinds, f"{name} has layers of {''.join(kinds[:1])}: full and sliding attention are served"),
        (all(one.kind is not one.VAR_KEYWORD for one in parameters),
         f"{name} keeps its keyword arguments from its attention: it is not served"),
        (nano_batches not in (1, 2), f"nano_batches = {nano_batches}: 1 or 2"),
        (nano_batches == 2 and not _takes_positions(decoder),
         f"{name} takes no position_ids that begin with 0, so documents cannot be dealt: nano_batches=1"),
    )


# The forwards of a model and of its decoder.


def _given(signature, arguments, keywords) -> dict:
    """The arguments by their names, those within **kwargs among them. None is as good as nothing."""
    given = signature.bind(*arguments, **keywords).arguments
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return {name: value for name, value in given.items() if value is not None}


def _begin(module, attached, given, ahead, dealt):
    """The call that a forward is; AS_SDPA; or None if it has no tokens, or another attention is set. Sends nothing."""
    tokens = _tokens_of(given)
    check_step(module, given, dealt)
    if tokens is None or module.config.get_text_config()._attn_implementation != NAME:
        return None
    trains = torch.is_grad_enabled() and (
        any(p.requires_grad for p in module.parameters()) or getattr(given.get("inputs_embeds"), "requires_grad", False)
    )
    mask = _mask_of(given)
    if not trains and (mask in ("padding", "another") or not CACHES.isdisjoint(given)):
        return AS_SDPA
    _check_call(module, given, mask, trains)
    shape, count = tuple(tokens.shape[:2]), attached.nano_batches if trains else 1
    parts = ahead.take(shape, given) if ahead and trains else None
    if dealt is None and trains:
        note_call_without(shape, given.get("input_ids"))
    if dealt is not None:
        parts = dealt.parts(trains)
    elif parts is None or len(parts) != count:
        parts = parts_of(shape, given, count)
    return _Call(shape, parts, trains, "position_ids" in given)


def _forward(model, inner, signature, attached, arguments, keywords):
    """The model around its decoder. It computes its loss from what the decoder returns for the whole batch."""
    ahead, dealt = keywords.pop(_AHEAD, None), keywords.pop(DEALT, None)
    given = _given(signature, arguments, keywords)
    call = _begin(model, attached, given, ahead, dealt)
    if call is None:
        return inner(*arguments, **keywords)
    bound = signature.bind(*arguments, **keywords)
    if call is not AS_SDPA and call.trains and "use_cache" in signature.parameters:
        bound.arguments["use_cache"] = False
    with under_way(call):
        outputs = inner(*bound.args, **bound.kwargs)
    return outputs if call is AS_SDPA else _with_loss(outputs, given)


def _with_loss(outputs, given):
    """A mean over no targets is 0. The host does not wait for the device to know it."""
    is_tuple = isinstance(outputs, tuple)
    loss = outputs[0] if is_tuple and outputs else getattr(outputs, "loss", None)
    targets = given.get("shift_labels", given.get("labels"))
    if not isinstance(targets, torch.Tensor) or not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        return outputs
    targets = targets if "shift_labels" in given else targets[..., 1:]
    loss = loss.masked_fill(loss.isnan() & (targets == -100).all().to(loss.device), 0)
    if is_tuple:
        return (loss, *outputs[1:])
    outputs.loss = loss
    return outputs


def _decoder_forward(decoder, inner, signature, attached, arguments, keywords):
    """The decoder, whose documents are computed in the parts that they are dealt to."""
    ahead, dealt, call = keywords.pop(_AHEAD, None), keywords.pop(DEALT, None), forward_under_way()
    if call is AS_VALUES:
        return inner(*arguments, **keywords)
    given = _given(signature, arguments, keywords)
    if call is None:  # another forward than the model's own calls the decoder
        call = _begin(decoder, attached, given, ahead, dealt)
    if call is None or call is AS_SDPA:
        return inner(*arguments, **keywords)
    _check_decoder(given, attached, call)
    given.pop("shift_labels", None)  # the head's
    if call.trains and "use_cache" in signature.parameters:
        given["use_cache"] = False
    makes_mask = "attention_mask" in signature.parameters and getattr(given.get("attention_mask"), "ndim", 2) == 2

    def run(given, cu_seqlens):
        if makes_mask:  # with one, Transformers does not look for documents in position_ids, for which a host would wait
            tokens = _tokens_of(given)
            given = {**given, "attention_mask": torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)}
        return inner(**given, distca_documents=Documents(cu_seqlens, attached.group, attached.linear_work, attached.kernel))

    with under_way(call):
        if len(call.parts) == 1 and len(call.parts[0].tokens):
            return run(given, call.parts[0].cu_seqlens)
        if makes_mask:
            given.pop("attention_mask", None)
        as_tuple = not given.pop("return_dict", decoder.config.return_dict)
        outputs = run_in_parts(run, given, call.shape, call.parts)
        return outputs.to_tuple() if as_tuple else outputs


def _check_decoder(given, attached, call):
    """Adds position_ids if there are none. Raises ValueError if the decoder cannot know where documents begin."""
    tokens, takes = _tokens_of(given), attached.takes_positions
    if tokens is None or tuple(tokens.shape[:2]) != call.shape:
        raise ValueError(f"the model gives its decoder other tokens than the {list(call.shape)} of its call: not served")
    has_lost_them = call.has_positions and "position_ids" not in given
    documents = sum(math.inf if in_pieces(part.cu_seqlens) else len(part.cu_seqlens) - 1
                    for part in call.parts if len(part.tokens))
    if documents > call.shape[0] and (not takes or has_lost_them):
        raise ValueError("the model takes no position_ids that begin with 0: it is served with one document in each row")
    if len(call.parts) > 1 and attached.most_positions < math.inf:
        longest = max(int(part.cu_seqlens.diff().max()) for part in call.parts if not in_pieces(part.cu_seqlens))
        if longest > attached.most_positions:
            raise ValueError(f"a document has {longest} tokens, and beyond {attached.most_positions}, the frequencies of this model's "
                             "RoPE follow the longest document of a nano-batch: nano_batches=1")
    is_dealt = len(call.parts) > 1 or not len(call.parts[0].tokens)
    if takes and "position_ids" not in given and (documents > call.shape[0] or is_dealt):
        given["position_ids"] = positions_of(call.shape, call.parts).to(tokens.device)


def _mask_of(given) -> str:
    """"ones", which is also no mask, "padding", "numbers" or "another". The host waits for a device that has a mask."""
    mask = given.get("attention_mask")
    if mask is None:
        return "ones"
    if getattr(mask, "ndim", 0) != 2:
        return "another"
    has_numbers, has_zeros = torch.stack([((mask != 0) & (mask != 1)).any(), (mask == 0).any()]).tolist()
    return "numbers" if has_numbers else "padding" if has_zeros else "ones"


def _check_call(model, given, mask, trains):
    """Raises ValueError if the arguments of a forward without a cache ask for what is not served."""
    tokens = _tokens_of(given)
    dtype = next(model.parameters()).dtype
    refuse(
        (mask == "numbers", "attention_mask has other values than 0 and 1: say the documents with position_ids instead"),
        (not CACHES.isdisjoint(given) or (trains and given.get("use_cache")),
         "a KV cache is not served in training: use_cache=False, and no past_key_values or cache"),
        (mask == "another", "a mask that is not [batch, tokens] is not served: say the documents with position_ids"),
        (mask == "padding", "padded batches are not served: pack documents with DataCollatorWithFlattening"),
        (given.get("output_attentions") or model.config.output_attentions,
         "output_attentions: attention returns no probabilities"),
        ("token_type_ids" in given, "token_type_ids may change the mask: leave them out of the batch"),
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
