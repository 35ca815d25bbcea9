"""Steps that are dealt over ranks, for an attached model of Transformers: which models may have them, and their evaluation."""

import math
from dataclasses import dataclass

import torch

from distca._deal import IGNORED, Dealer
from distca._served import refuse
from distca._transformers_attention import AS_VALUES, under_way
from distca.plan import Shape

_ROWS = 4096  # whose losses are computed at once
_SAME = 0.05  # the relative difference that rounding makes at most; what mixes tokens makes about 1
_OF_ROWS = {"dynamic", "longrope"}  # kinds of RoPE whose frequencies follow the largest position of a rank's own rows


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found, the same on all ranks."""

    loss: float  # a target, the mean over all; NaN without targets
    targets: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


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
        (bool(getattr(config, "output_router_logits", False)), "output_router_logits: the loss of routers is a mean over a rank's "
                                                               "rows, set it to False"),
    )
    if not _keeps_rows_apart(decoder):
        raise ValueError(f"{name} mixes tokens by something else than attention: documents that are cut over ranks are not served")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = Shape(heads, getattr(config, "num_key_value_heads", None) or heads, head_dim + -head_dim % 8)
    count = attached.nano_batches if nano_batches is None else nano_batches
    device = next((weight.device for weight in decoder.parameters() if not weight.is_meta), torch.device("cpu"))
    return Dealer(attached.group, shape, at_once, count, gradients, device)


def _keeps_rows_apart(decoder) -> bool:
    """Whether a token's outputs are the same among others in another order, where attention gives each token its own V.

    A model that is sharded, or has no weights yet, is not asked.
    """
    weights = [*decoder.parameters()]
    if any(hasattr(weight, "_local_tensor") or weight.is_meta for weight in weights):
        return True
    order, training = torch.tensor([3, 0, 6, 1], device=weights[0].device), [m for m in decoder.modules() if m.training]
    tokens = (torch.arange(8, device=order.device) % decoder.config.get_text_config().vocab_size)[None]
    decoder.eval()
    try:
        with torch.no_grad(), under_way(AS_VALUES):
            found = [decoder(input_ids=ids, position_ids=at, use_cache=False, return_dict=True).last_hidden_state[0].float()
                     for ids, at in ((tokens, tokens), (tokens[:, order], tokens[:, order]))]
    finally:
        for module in training:
            module.training = True
    return bool((found[0][order] - found[1]).norm() <= _SAME * found[0].norm())


def _rope_kinds(module) -> set:
    """Of one module: a name, or one for each kind of layer."""
    kind = getattr(module, "rope_type", None)
    return set(kind.values()) if isinstance(kind, dict) else {kind} if isinstance(kind, str) else set()


def evaluated(dealer, loader, model) -> Evaluation:
    """The evaluation of `loader`, whose batches are dealt one by one; ranks may have unequal numbers of them."""
    total, count = torch.zeros((), dtype=torch.float64, device="cpu"), 0
    with torch.no_grad():
        for batch in dealer.until_all_have_ended(loader):
            targets = batch.pop("shift_labels", None)
            if targets is None:
                raise ValueError("evaluate: the loader gives no labels")
            del batch["labels"]
            logits = model(**batch, use_cache=False).logits[0]
            targets = targets[0].to(logits.device)
            for rows, wanted in zip(logits.split(_ROWS), targets.split(_ROWS)):
                exact = rows if rows.dtype == torch.float64 else rows.float()
                losses = torch.nn.functional.cross_entropy(exact, wanted, reduction="none", ignore_index=IGNORED)
                total += losses.sum(dtype=torch.float64).cpu()
            count += int((targets != IGNORED).sum())
    sums = dealer.sums_of([total.item(), count])
    return Evaluation(sums[0] / sums[1] if sums[1] else math.nan, int(sums[1]))
