"""Steps that are dealt over ranks, for an attached model of Transformers: which models may have them, and their evaluation."""

import contextlib
import functools
import math
import warnings
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface

from distca._deal import DEALT, IGNORED, Dealer, is_cut
from distca._nano_batches import CACHES
from distca._served import refuse
from distca._transformers_attention import AS_VALUES, NAME, under_way
from distca.plan import Shape

_ROWS = 4096  # whose losses are computed at once
_SAME = 0.05  # the relative difference that rounding makes at most; what mixes tokens makes about 1
_LOSS_OF_ROUTERS = "output_router_logits: the loss of routers is a mean over a rank's rows, set it to False (SFTTrainer: router_aux_loss_coef=0)"
_OF_ROWS = {"dynamic", "longrope"}  # kinds of RoPE whose frequencies follow the largest position of a rank's own rows


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found, the same on all ranks."""

    loss: float  # a target, the mean over all; NaN without targets
    targets: int
    perplexity: float = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "perplexity", math.exp(self.loss) if self.loss < 700 else math.inf)


def base_of(model):
    """The model that PEFT has wrapped, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def dealt_base_of(model):
    """The same of a model that gets dealt steps. Raises ValueError."""
    kinds = getattr(model, "peft_config", None)
    has_alora = isinstance(kinds, dict) and any(getattr(kind, "alora_invocation_tokens", None) for kind in kinds.values())
    refuse((has_alora, "alora_invocation_tokens: aLoRA looks for them in a rank's rows, so documents that are cut over ranks are "
                       "not served"))
    return base_of(model)


def dealer_of(model, decoder, attached, at_once, gradients, nano_batches=None) -> Dealer:
    """What deals steps for this model. Raises ValueError in one line for a model that cannot have them."""
    config = model.config.get_text_config()
    kinds = {kind for module in model.modules() for kind in _rope_kinds(module)}
    mixers = [name for name, module in model.named_modules() if isinstance(module, (torch.nn.Conv1d, torch.nn.modules.rnn.RNNBase))]
    name, heads = type(model).__name__, config.num_attention_heads
    refuse(
        (bool(kinds & _OF_ROWS), f"{name} has RoPE of kind {', '.join(sorted(kinds & _OF_ROWS))}, whose frequencies follow the "
                                 "largest position of a rank's own rows: documents that are cut over ranks are not served"),
        (bool(mixers), f"{name} mixes tokens by {mixers[0] if mixers else None}, not by attention alone: documents that are cut "
                       "over ranks are not served"),
        (not attached.takes_positions, f"{name} takes no position_ids that begin with 0: documents that are cut over ranks are "
                                       "not served"),
        (bool(getattr(config, "output_router_logits", False)), _LOSS_OF_ROUTERS),
    )
    if not _keeps_rows_apart(decoder):
        raise ValueError(f"{name} mixes tokens by something else than attention: documents that are cut over ranks are not served")
    guard_attention()
    shape = Shape(heads, getattr(config, "num_key_value_heads", None) or heads,
                  getattr(config, "head_dim", None) or config.hidden_size // heads)
    count = attached.nano_batches if nano_batches is None else nano_batches
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    device = next((weight.device for weight in decoder.parameters() if not weight.is_meta), torch.device("cpu"))
    dealer = Dealer(attached.group, shape, at_once, count, gradients, device)
    refuse((dealer.ranks == world and (getattr(model, "_tp_size", None) or 1) > 1,
            f"{name} is divided by tensor parallelism, whose ranks have the same tokens: attach it to a group of one of each"))
    return dealer


def check_step(module, given, dealt):
    """Raises ValueError unless a model that gets tokens of a step is called with what `shard` has dealt, and computes its
    attention by distca. dealt: None where the call has none."""
    tokens = given.get("input_ids", given.get("inputs_embeds"))
    if dealt is None:
        refuse((isinstance(tokens, torch.Tensor) and is_cut(tokens),
                f"these input_ids are of a step that shard has dealt, whose documents lie on many ranks, and the step's item {DEALT} is "
                "missing: give the attached model the whole batch, model(**batch)"))
        return
    config = module.config.get_text_config()
    shape, rows = None if tokens is None else list(tokens.shape[:2]), sum(dealt.rows)
    refuse(
        (config._attn_implementation != NAME,
         f"attention of the model is {config._attn_implementation}, which knows no pieces of documents"),
        (shape != [1, rows], f"the model is called with {shape} tokens, and shard dealt another batch"),
        ("position_ids" not in given, "the batch of a step has position_ids, and the model is called without them"),
        (not CACHES.isdisjoint(given), "a KV cache is not served with pieces of documents"),
        (bool(given.get("output_router_logits", getattr(config, "output_router_logits", False))), _LOSS_OF_ROUTERS),
    )


def check_taken(dealt, model):
    """Raises RuntimeError unless an attached model was called with this step; another one takes each piece for a document."""
    if not dealt.is_taken:
        raise RuntimeError(f"{type(model).__name__} was given a step of distca.transformers.shard, whose documents are cut over ranks, "
                           "and is not attached: distca.transformers.attach(model)")


def guard_attention():
    """Lets other attention of Transformers refuse a step, which reaches it where a model is called that is not attached."""
    for name, inner in AttentionInterface().items():
        if name != NAME and not hasattr(inner, "distca"):
            AttentionInterface.register(name, _guarded(inner))


def _guarded(inner):
    @functools.wraps(inner)
    def attend(module, *arguments, **keywords):
        if DEALT in keywords:
            raise ValueError(f"{type(module).__name__} was given a step of distca.transformers.shard, whose documents are cut over "
                             "ranks, and its model is not attached: distca.transformers.attach(model)")
        return inner(module, *arguments, **keywords)

    attend.distca = True
    return attend


def _can_be_tried(model) -> bool:
    """A model that is sharded, or has no weights yet, is not."""
    return not any(hasattr(weight, "_local_tensor") or weight.is_meta for weight in model.parameters())


@contextlib.contextmanager
def _tried(model):
    """Calls of the model within compute no gradients, send nothing and give each token its own V as attention.

    Gives eight tokens, which are their positions, too.
    """
    training = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad(), under_way(AS_VALUES):
            yield (torch.arange(8, device=device) % model.config.get_text_config().vocab_size)[None]
    finally:
        for module, mode in training:
            module.training = mode


def _keeps_rows_apart(decoder) -> bool:
    """Whether a token's outputs are the same among others in another order."""
    if not _can_be_tried(decoder):
        return True
    with _tried(decoder) as tokens:
        order = torch.tensor([3, 0, 6, 1], device=tokens.device)
        found = [decoder(input_ids=ids, position_ids=ids, use_cache=False, return_dict=True).last_hidden_state[0].float()
                 for ids in (tokens, tokens[:, order])]
    return bool((found[0][order] - found[1]).norm() <= _SAME * found[0].norm())


def own_loss_of(model) -> str | None:
    """A line that names a model whose loss is not the sum over shift_labels by num_items_in_batch.

    One token counts, the first, of which nothing is left where a model shifts labels again. Heads may compute another loss in
    training than in evaluation: both are tried, without dropout.
    """
    if not _can_be_tried(model):
        made_by = next(kind for kind in type(model).__mro__ if "forward" in vars(kind))
        if not vars(made_by)["forward"].__module__.startswith("transformers."):  # a forward of others may be patched into the class
            warnings.warn(f"the loss of {made_by.__name__} cannot be tried, since weights are sharded or missing: it has to be the sum "
                          "over shift_labels, which are shifted already, by num_items_in_batch. Before the model is sharded, shard "
                          "tries it", stacklevel=3)
        return None
    with _tried(model) as tokens:
        given = dict(input_ids=tokens, position_ids=tokens, use_cache=False, return_dict=True)
        labels = torch.full_like(tokens, IGNORED)
        targets = labels.clone()
        targets[0, 0] = 1
        try:
            wanted = torch.nn.functional.cross_entropy(model(**given).logits[0, :1].float(), targets[0, :1]) / 3
            given |= dict(labels=labels, shift_labels=targets, num_items_in_batch=3)
            good = all(_has_loss(model, is_training, wanted, given) for is_training in (False, True))
        except (AttributeError, TypeError):  # it takes none of these, or has no loss
            good = False
    return None if good else f"the loss of {type(model).__name__} is not that of shift_labels divided by num_items_in_batch"


def _has_loss(model, is_training, wanted, given) -> bool:
    """is_training: of the model itself; the modules within it stay in evaluation."""
    model.training = is_training
    try:
        return bool((model(**given).loss - wanted).abs() <= _SAME * wanted)
    except (RuntimeError, ValueError):  # kernels for training alone, on a device where the weights are not yet
        if not is_training:
            raise
        return True
    finally:
        model.training = False


def _rope_kinds(module) -> set:
    """Of one module: a name, or one for each kind of layer."""
    kind = getattr(module, "rope_type", None)
    return set(kind.values()) if isinstance(kind, dict) else {kind} if isinstance(kind, str) else set()


def most_positions(model) -> float:
    """How long a document may be where frequencies of RoPE are to be the same for all nano-batches of a forward."""
    if not any(kind in _OF_ROWS for module in model.modules() for kind in _rope_kinds(module)):
        return math.inf
    config = model.config.get_text_config()
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_kinds = [one for one in (given, *given.values()) if isinstance(one, dict) and one.get("rope_type", one.get("type")) in _OF_ROWS]
    known = [one["original_max_position_embeddings"] for one in of_kinds if one.get("original_max_position_embeddings")]
    return min([*known, getattr(config, "max_position_embeddings", None) or math.inf])


def evaluated(dealer, loader, model) -> Evaluation:
    """The evaluation of `loader`, whose batches are dealt one by one; ranks may have unequal numbers of them."""
    total, count = torch.zeros((), dtype=torch.float64, device="cpu"), 0
    with torch.no_grad():
        for batch in dealer.until_all_have_ended(loader):
            targets = batch.pop("shift_labels", None)
            if targets is None:
                raise ValueError("evaluate: the loader gives no labels")
            batch.pop("labels", None)
            logits = model(**batch, use_cache=False).logits[0]
            check_taken(batch[DEALT], model)
            targets = targets[0].to(logits.device)
            for rows, wanted in zip(logits.split(_ROWS), targets.split(_ROWS)):
                exact = rows if rows.dtype == torch.float64 else rows.float()
                losses = torch.nn.functional.cross_entropy(exact, wanted, reduction="none", ignore_index=IGNORED)
                total += losses.sum(dtype=torch.float64).cpu()
            count += int((targets != IGNORED).sum())
    sums = dealer.sums_of([total.item(), count])
    return Evaluation(sums[0] / sums[1] if sums[1] else math.nan, int(sums[1]))
