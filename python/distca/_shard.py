"""Steps whose tokens are dealt over the ranks of a group: `distca.shard` and `distca.unshard`."""

import contextlib
import sys
import warnings
from itertools import islice

import torch
from torch.autograd.function import once_differentiable

from distca._ahead import plan_ahead
from distca._deal import DEALT, Dealer
from distca._served import refuse
from distca.plan import Shape

_APART = ("{}: steps that are dealt are no loader that can be taken apart; give distca.transformers.shard what Accelerate's "
          "prepare and skip_first_batches return")


def shard(loader, shape: Shape, *, group=None, at_once: int | None = None, accumulate: int = 1, gradients: str = "mean"):
    """A loader whose steps are dealt over the ranks of a group: each rank has any pieces of any documents.

        for batch in distca.shard(loader, shape=Shape(num_heads=32, num_kv_heads=8, head_dim=128)):
            seg = batch["pieces"]  # what attention takes as cu_seqlens_q and cu_seqlens_k

    A step is what the loaders of all ranks yield together. The planner deals its tokens, equally many to each rank to
    within 128. So the memory of activations falls with the number of ranks, whatever the lengths of documents are. A step
    is dealt just before the one before it trains, and planned while that one trains (`plan_ahead`).

    loader: yields batches, dictionaries with input_ids [rows, tokens]. It may have labels, which are shifted before rows are
      dealt, or shift_labels; position_ids or cu_seq_lens_q, which say where documents begin, as `distca.transformers`
      finds them; and other integers for each token. None is a rank that gives nothing to the step. All ranks iterate alike.
    shape: of the core attention of a layer, for the layout. Its dtype may be another one.
    group: as in `attention`.
    at_once: how many ranks' batches make a step; None for all. It divides the number of ranks. With 1, each batch is
      spread over all ranks, and the ranks' batches come in turns: a loader of n batches gives n * ranks / at_once steps.
    accumulate: the number of steps whose gradients are added up before the optimizer steps.
    gradients: what reduces gradients over the ranks of the group: "mean" (DDP, FSDP2) or "sum".

    A batch has on every rank, on the CPU, input_ids, position_ids and shift_labels, each [1, rows of this rank], what else the
    loader gives for each token, `pieces` [pieces, 3], and num_items_in_batch. It has no labels, which a loss would shift again.
    A rank's loss is the sum over its rows / num_items_in_batch, which is the number of targets of `accumulate` steps, for
    "mean" divided by the ranks.

    Errors. ValueError in one line about arguments. RuntimeError, on all ranks, names the rank whose batch cannot be dealt,
    has other items, or does not come.
    """
    dealer = Dealer(group, shape, at_once, 1, gradients)
    warn_of_scheduler(dealer, loader)
    return steps(dealer, loader, accumulate)


def steps(dealer, loader, accumulate=1):
    """The loader that `shard` returns."""
    check_accelerate(loader, accumulate)
    if not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"accumulate = {accumulate!r}: steps whose gradients are added up, 1 or more")
    return Planned(Steps(dealer, loader, accumulate))


def check_accelerate(loader, accumulate=1):
    """Raises ValueError for what Accelerate would do to steps that are dealt."""
    state = sys.modules.get("accelerate.state")
    kinds = [kind.__name__ for kind in type(loader).__mro__]
    shared = state.AcceleratorState._shared_state if state else {}
    counted = state.GradientState._shared_state.get("plugin_kwargs", {}).get("num_steps") or 1 if state else 1
    refuse(
        ("DataLoaderDispatcher" in kinds, "dispatch_batches of Accelerate slices the batches of rank 0: each rank reads its own, "
                                          "dispatch_batches=False"),
        (getattr(loader, "use_stateful_dataloader", False), "use_stateful_dataloader of Accelerate: its state runs ahead of steps "
                                                            "that are dealt, set it to False"),
        (str(getattr(shared.get("distributed_type"), "name", "")) == "DEEPSPEED", "DeepSpeed is not served: DDP or FSDP2"),
        (accumulate > 1 and counted > 1, f"accumulate = {accumulate} and gradient_accumulation_steps = {counted} of Accelerate, "
                                         "whose backward divides by it: one of the two"),
    )


def warn_of_scheduler(dealer, loader):
    """A scheduler that Accelerate has prepared takes each step for one batch of every rank. Whether there is one, nobody knows."""
    if hasattr(loader, "gradient_state") and not getattr(loader, "split_batches", False) and dealer.at_once < dealer.ranks:
        warnings.warn(f"at_once = {dealer.at_once}: if accelerator.prepare has a learning-rate scheduler, it makes a step for each rank "
                      "in every step of yours; keep it out of prepare, or Accelerator(step_scheduler_with_optimizer=False)",
                      stacklevel=3)


def unshard(values: torch.Tensor, batch) -> torch.Tensor:
    """The rows that belong to the tokens which this rank's loader gave to the step, in its order. It has gradients.

    values: [1, rows of this rank, ...], what a model says of a batch of `shard`: log-probabilities, rewards, logits.
    Returns [1, tokens, ...], where tokens are those of this rank's own batch, row by row; none in the turn of other ranks'
    batches (`at_once`). All ranks call it alike, and what it returns is a part of every rank's loss: in backward, ranks wait
    for each other.
    """
    dealt = batch[DEALT]
    if values.dim() < 2 or values.shape[:2] != (1, len(dealt.receives.rows)):
        raise ValueError(f"values have shape {list(values.shape)}: [1, {len(dealt.receives.rows)}, ...], a row for each token")
    return _Back.apply(values[0], dealt).unsqueeze(0)


class _Back(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, dealt):
        ctx.dealt = dealt
        return dealt.back(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return ctx.dealt.deal(gradient), None


def samplers_of(loader) -> list:
    """What a loader takes samples by. Accelerate wraps one in another."""
    found = [loader]
    for wrapper in found:  # which grows
        within = [getattr(wrapper, name, None) for name in ("batch_sampler", "sampler")]
        found += [one for one in within if one is not None and all(one is not other for other in found)]
    return found[1:]


@contextlib.contextmanager
def drawn_again(loader):
    """Samplers of the loader that draw from PyTorch's generators draw the same once more, after this."""
    generators = {id(one): one for one in (getattr(sampler, "generator", None) for sampler in samplers_of(loader))}
    states = [(one, one.get_state()) for one in (torch.default_generator, *generators.values()) if isinstance(one, torch.Generator)]
    try:
        yield
    finally:
        for one, state in states:
            one.set_state(state)


_OF_STEPS = ("dealer", "loader", "accumulate", "skips", "is_evaluation")
_HIDDEN = ("sampler", "batch_sampler", "drop_last")  # with which Accelerate takes a loader apart


class Steps:
    """The steps of `shard`, not planned. Its other attributes are those of the loader, also where they are set."""

    def __init__(self, dealer, loader, accumulate, skips=0, is_evaluation=False):
        """is_evaluation: the loaders of ranks may have unequal numbers of batches."""
        self.dealer, self.loader, self.accumulate, self.skips = dealer, loader, accumulate, skips
        self.is_evaluation = is_evaluation

    @property
    def turns(self):
        """The number of steps that the batches of all ranks make."""
        return self.dealer.ranks // self.dealer.at_once

    def over(self, loader, skips):
        """Planned steps of the same kind over another loader, without its first ones."""
        return Planned(Steps(self.dealer, loader, self.accumulate, skips, self.is_evaluation))

    def __len__(self):
        return len(self.loader) * self.turns - self.skips

    def set_epoch(self, epoch):
        """Of the loader, and of the samplers within it, which Trainer would look for."""
        for one in [self.loader, *samplers_of(self.loader)]:
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def __getattr__(self, name):
        if name in _HIDDEN:
            raise AttributeError(_APART.format(name))
        # The loader runs ahead of the steps: what Accelerate hears of it comes from `Planned`.
        is_ahead = name == "state_dict" and (self.turns > 1 or self.accumulate > 1 or hasattr(self.loader, "gradient_state"))
        if name in _OF_STEPS or name == "gradient_state" or is_ahead:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value) if name in _OF_STEPS else setattr(self.loader, name, value)

    def __iter__(self):
        each = self.dealer.until_all_have_ended if self.is_evaluation else self.dealer.each
        counted = self._counted(islice(each(self.loader), self.skips, None))
        if not hasattr(self.loader, "gradient_state"):
            yield from counted
            return
        previous = next(counted, None)
        for batch in counted:
            yield previous
            previous = batch
        if previous is not None:
            previous[DEALT].is_last = True
            yield previous

    def _counted(self, batches):
        """The batches with the number of targets of each group that is accumulated. The last group may have fewer."""
        while group := [*islice(batches, self.accumulate)]:
            targets = max(sum(batch[DEALT].targets for batch in group), 1)
            items = targets / (self.dealer.ranks if self.dealer.gradients == "mean" else 1)
            for batch in group:
                yield {**batch, "num_items_in_batch": items}


class _Place:
    """What Accelerate's GradientState hears of the steps in place of the loader. Nothing of a gathered loss is cut off."""

    end_of_dataloader, remainder = False, 0


class Planned(plan_ahead):
    """What `shard` returns."""

    def __init__(self, of):
        super().__init__(of, lambda batch: batch[DEALT].pieces, of.dealer.group)

    @property
    def steps(self):
        return self._ahead.loader

    def __iter__(self):
        of = self.steps
        state, place = getattr(of.loader, "gradient_state", None), _Place()
        try:
            for batch in super().__iter__():
                if state is not None:
                    for one in (of.loader, place):
                        state._remove_dataloader(one)
                    state._add_dataloader(place)
                    place.end_of_dataloader = batch[DEALT].is_last
                of.dealer.under_way = batch[DEALT]
                yield batch
                if not of.dealer.is_plain and not batch[DEALT].is_taken and batch[DEALT].is_missed:
                    raise RuntimeError(f"a batch of distca.transformers.shard has an item {DEALT}, and attention was called without "
                                       "it: give the attached model the whole batch, model(**batch)")
        finally:
            of.dealer.under_way = None
            if state is not None:
                state._remove_dataloader(place)
