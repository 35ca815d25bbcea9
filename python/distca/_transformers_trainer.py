"""A Trainer whose steps are dealt over the ranks: `distca.transformers.shard(trainer)`."""

import functools

import torch
import transformers.trainer

from distca._deal import DEALT, IGNORED
from distca._served import refuse
from distca._shard import Planned, Steps, check_accelerate, drawn_again, steps
from distca._transformers_shard import check_taken, own_loss_of

# These modules have a loss that takes shift_labels.
_METRICS = "compute_metrics reads the predictions of whole rows: distca.unshard in a loop of your own gives them"
_LOSSES = ("transformers.trainer", "trl.trainer.sft_trainer", "axolotl.core.trainers.base")


def shard_trainer(trainer, dealer, of_evaluation, attached):
    """Deals the steps of this Trainer, and the batches of its evaluations one by one. Raises ValueError.

    attached: the model within what the trainer wraps.
    """
    args, accelerator = trainer.args, trainer.accelerator
    of_loss = getattr(trainer.compute_loss, "__func__", trainer.compute_loss)  # one that was set on the trainer itself, too
    own_loss = own_loss_of(attached)
    check_accelerate(None)
    refuse(
        (hasattr(trainer, "distca_dealer"), "the steps of this trainer are dealt already"),
        (not (getattr(of_loss, "__module__", None) or "").startswith(_LOSSES),
         f"compute_loss of {type(trainer).__name__} is its own: labels are shifted and dealt already, so Trainer and SFTTrainer are "
         "served"),
        (own_loss is not None, f"{own_loss}: not served"),
        (trainer.model_init is not None, "model_init: train() makes another model, which is not attached; give the trainer a model"),
        (trainer.compute_metrics is not None, _METRICS),
        (getattr(args, "eval_use_gather_object", False), "eval_use_gather_object = True: losses are gathered as tensors, set it to "
                                                         "False"),
        (args.n_gpu > 1, f"DataParallel of {args.n_gpu} devices is not served: start a process for each with torchrun or accelerate "
                         "launch, or let one be visible (CUDA_VISIBLE_DEVICES)"),
        (trainer.compute_loss_func is not None, "compute_loss_func reads labels that are shifted and dealt already: not served"),
        (trainer.label_smoother is not None, "label_smoothing_factor: its loss shifts labels that are shifted already, set it to 0"),
        (not args.average_tokens_across_devices, "average_tokens_across_devices = False: ranks have unequal numbers of targets, "
                                                 "set it to True"),
        (bool(args.neftune_noise_alpha), "neftune_noise_alpha: its noise is scaled by the rows of a rank, and not served"),
        (accelerator.dispatch_batches is True, "dispatch_batches = True: each rank reads its own batches, set it to False"),
        (dealer.ranks != accelerator.num_processes, f"the model shares attention among {dealer.ranks} ranks, and the trainer has "
                                                    f"{accelerator.num_processes}: attach the model to all of them"),
    )
    trainer.distca_dealer = dealer
    of_train, of_eval, samples = trainer.get_train_dataloader, trainer.get_eval_dataloader, trainer.get_batch_samples
    loss, gather = trainer.compute_loss, trainer.gather_function
    has_new_loss = args.use_liger_kernel  # which train() puts into the model

    def get_eval_dataloader(*given, **named):
        loader = of_eval(*given, **named)
        check_accelerate(loader)
        refuse((trainer.compute_metrics is not None, _METRICS))
        of_evaluation.samples = None
        if loader.batch_sampler is not None and not isinstance(loader.dataset, torch.utils.data.IterableDataset):
            loader.batch_sampler.even_batches = False  # else Accelerate repeats samples
            with drawn_again(loader):
                of_evaluation.samples = [len(indices) for indices in loader.batch_sampler]
        elif dealer.ranks > 1:
            raise ValueError("eval_dataset has no length, so Accelerate repeats its first samples at its end: give one with a length")
        trainer.gather_function = gather_function  # Trainer sets its own after each evaluation
        return Planned(Steps(of_evaluation, loader, 1, is_evaluation=True))

    def get_batch_samples(*given, **named):
        """Targets are counted by who has dealt them, since not every version of Trainer knows shift_labels."""
        batches, items = samples(*given, **named)
        if any(DEALT not in batch for batch in batches):
            raise ValueError("a batch of this trainer was not dealt: its loader was replaced after distca.transformers.shard")
        if items is None:
            return batches, None
        return batches, torch.tensor(max(1, sum(batch[DEALT].targets for batch in batches)), device=args.device)

    def gather_function(values, *given, **named):
        """Of the losses of an evaluation, of which each rank has its share: one for each sample, as in one process."""
        gathered, dealt = gather(values, *given, **named), of_evaluation.under_way
        return gathered if dealt is None else gathered.view(of_evaluation.ranks, -1).mean(0)[: dealt.samples]

    def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
        """A loss is divided by the targets of all ranks in an evaluation, too, and where Trainer says no number because the model
        has a loss of its own: SFTTrainer would divide by each rank's."""
        dealt = inputs.get(DEALT)
        if dealt is not None and (num_items_in_batch is None or dealt is of_evaluation.under_way):
            num_items_in_batch = torch.tensor(max(1, dealt.targets), device=args.device)
        nonlocal has_new_loss
        if dealt is not None and has_new_loss:
            has_new_loss, line = False, own_loss_of(attached)
            refuse((line is not None, f"{line}: not served"))
        found = loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        if dealt is not None:
            check_taken(dealt, model)
            if dealt is not of_evaluation.under_way:
                _count_targets(trainer, dealt, inputs)
        return found

    trainer.compute_loss = compute_loss
    trainer.get_train_dataloader = lambda: steps(dealer, of_train())
    trainer.get_eval_dataloader, trainer.get_batch_samples = get_eval_dataloader, get_batch_samples
    if not hasattr(transformers.trainer.skip_first_batches, "distca"):
        transformers.trainer.skip_first_batches = _skipping(transformers.trainer.skip_first_batches)


def _count_targets(trainer, dealt, inputs):
    """What Axolotl's trainer finds no labels of: its own count of this rank (0.21 on), or that of all ranks in the state."""
    counts, own = getattr(trainer.state, "tokens", None), getattr(trainer, "_tkps_trainable_acc", None)
    if own is not None:
        own += (inputs["shift_labels"] != IGNORED).sum()
    elif counts and "trainable" in counts:
        counts["trainable"] += dealt.targets


def _skipping(skip_first_batches):
    """The function with which a resumed Trainer skips batches, and that skips steps of ours as well."""

    @functools.wraps(skip_first_batches)
    def skipped(loader, num_batches=0):
        if not isinstance(loader, Planned):
            return skip_first_batches(loader, num_batches)
        dealt = loader.steps
        whole, rest = divmod(num_batches, dealt.turns)
        return dealt.over(skip_first_batches(dealt.loader, whole), rest)

    skipped.distca = True
    return skipped
