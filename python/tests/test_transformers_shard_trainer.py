"""Transformers' own Trainer in two processes, its steps dealt over both, against one process."""

import math
import tempfile

import pytest
import torch

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from rank_processes import Ranks  # noqa: E402
from test_transformers_trainer import LENGTHS, set_environment  # noqa: E402
from transformers_model import documents_of, make  # noqa: E402

import distca.transformers  # noqa: E402
from distca._shard import Steps  # noqa: E402

DATASET = [{"input_ids": document.tolist()} for document in documents_of([*LENGTHS, 900, 3, 5, 2])]


def trainer_of(model, folder, accumulated, evaluated=9, **changes):
    settings = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": 6, "learning_rate": 1e-3,
                "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "no", "logging_steps": 1}
    return transformers.Trainer(
        model=model, train_dataset=DATASET, eval_dataset=DATASET[:evaluated],
        args=transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, gradient_accumulation_steps=accumulated, report_to="none", disable_tqdm=True,
            **{**settings, **changes}),
        data_collator=transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True))


def losses_of(trainer):
    """Norms are of the gradients before Accelerate divides them: the Trainer of Transformers 5.2 has it do so by the batches
    that it accumulates, though its loss is divided by their tokens already."""
    scales = {"loss": 1, "grad_norm": trainer.accelerator.gradient_accumulation_steps, "eval_loss": 1}
    return [(name, entry[name] * scale) for entry in trainer.state.log_history for name, scale in scales.items() if name in entry]


def alone(accumulated, **changes):
    """[(name, loss)] of one process with sdpa."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(make("llama"), folder, accumulated, **changes)
        trainer.train()
    return losses_of(trainer)


def as_cpu(storage, location):
    """The Trainer of Transformers 5.2 asks for an optimizer on "cpu:0", which torch.load does not know."""
    return storage if location == "cpu:0" else None


torch.serialization.register_package(9, lambda _: None, as_cpu)


def dealt(port, folder, accumulated, at_once, nano_batches, resumes, changes):
    """The same of a rank whose steps are dealt; and the steps that the run takes an epoch for, with what it sent."""
    set_environment(port)
    model, before = make("llama"), distca.statistics().sent_bytes
    distca.transformers.attach(model, nano_batches=nano_batches)
    trainer = trainer_of(model, folder, accumulated, **changes)
    distca.transformers.shard(trainer, at_once=at_once)
    trainer.train(resume_from_checkpoint=resumes)
    return losses_of(trainer), len(trainer.get_train_dataloader()), distca.statistics().sent_bytes - before


@pytest.fixture(scope="module")
def trainers():
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("at_once, accumulated, nano_batches, evaluated", [(None, 2, 1, 9), (1, 4, 2, 7)])
def test_two_processes_have_the_losses_of_one(trainers, at_once, accumulated, nano_batches, evaluated):
    """Six steps, of which the fifth ends an epoch and has fewer batches; samples of the evaluation do not divide evenly."""
    changes = {"evaluated": evaluated}
    wanted, folder = alone(4, **changes), tempfile.mkdtemp()
    assert [name for name, _ in wanted] == [*["loss", "grad_norm"] * 3, "eval_loss"] * 2
    for losses, steps, sent in trainers.run(dealt, trainers.store.port, folder, accumulated, at_once, nano_batches, None, changes):
        assert sent > 0 and steps == 9 * (2 if at_once == 1 else 1)
        for (name, value), (of, want) in zip(losses, wanted, strict=True):
            assert name == of and math.isclose(value, want, rel_tol=1e-4 if name == "grad_norm" else 2e-6), (losses, wanted)


@pytest.mark.parametrize("at_once, accumulated, saved", [(1, 3, 3), (None, 2, 1)])
def test_a_resumed_run_has_the_losses_of_one_that_was_not_stopped(trainers, at_once, accumulated, saved):
    changes = {"max_steps": 8, "eval_strategy": "no", "save_strategy": "steps", "save_steps": saved}
    folder = tempfile.mkdtemp()
    whole = trainers.run(dealt, trainers.store.port, folder, accumulated, at_once, 1, None, changes)[0][0]
    again = trainers.run(dealt, trainers.store.port, folder, accumulated, at_once, 1, f"{folder}/checkpoint-{saved}", changes)[0][0]
    assert len(whole) == 16 and again == whole


@pytest.mark.parametrize("change, line", [
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: its loss shifts labels"),
    ({"average_tokens_across_devices": False}, "average_tokens_across_devices = False"),
    ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches = True"),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: its noise is scaled by the rows of a rank"),
    ({"eval_use_gather_object": True}, "eval_use_gather_object = True: losses are gathered as tensors"),
])
def test_settings_that_read_whole_rows_are_refused(change, line):
    model = make("llama")
    distca.transformers.attach(model)
    with tempfile.TemporaryDirectory() as folder, pytest.raises(ValueError, match=line):
        distca.transformers.shard(trainer_of(model, folder, 1, **change), at_once=1)


def test_metrics_of_whole_rows_are_refused():
    model = make("llama")
    distca.transformers.attach(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, folder, 1)
        trainer.compute_metrics = lambda _: {}
        with pytest.raises(ValueError, match="compute_metrics reads the predictions of whole rows"):
            distca.transformers.shard(trainer)
        trainer.compute_metrics = None
        trainer.args._n_gpu = 2
        with pytest.raises(ValueError, match="^DataParallel of 2 devices is not served: start a process for each with torchrun"):
            distca.transformers.shard(trainer)
        trainer.args._n_gpu = 0
        distca.transformers.shard(trainer)
        trainer.compute_metrics = lambda _: {}
        with pytest.raises(ValueError, match="^compute_metrics reads the predictions of whole rows"):
            trainer.evaluate()
        with pytest.raises(ValueError, match="the steps of this trainer are dealt already"):
            distca.transformers.shard(trainer)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(DATASET[:5])


def evaluation_of_stream(port):
    set_environment(port)
    model = make("llama")
    distca.transformers.attach(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, folder, 1, accelerator_config={"dispatch_batches": False})
        distca.transformers.shard(trainer)
        try:
            return trainer.evaluate(Stream())["eval_loss"]
        except ValueError as error:
            return str(error)


def test_an_evaluation_of_a_stream(trainers):
    """Nobody knows how many samples it has until it ends."""
    with Ranks(1) as one:
        assert math.isfinite(*one.run(evaluation_of_stream, one.store.port))
    for said in trainers.run(evaluation_of_stream, trainers.store.port):
        assert said.startswith("eval_dataset has no length, so Accelerate repeats its first samples at its end")


class Drawn(torch.utils.data.Sampler):
    """Draws anew each time, as that of train_sampling_strategy="group_by_length"."""

    def __init__(self, data):
        self.data, self.generator = data, torch.Generator().manual_seed(3)

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter(torch.randperm(len(self.data), generator=self.generator).tolist())


def test_an_evaluation_has_the_batches_that_it_has_without_shard(tmp_path):
    """Its sampler draws; a mean of batches' losses depends on what they have."""
    losses = []
    for is_dealt in (False, True):
        model = make("llama")
        distca.transformers.attach(model)
        trainer = trainer_of(model, tmp_path, 1)
        if is_dealt:
            distca.transformers.shard(trainer)
        trainer._get_eval_sampler = Drawn
        losses.append(trainer.evaluate()["eval_loss"])
    assert math.isclose(*losses, rel_tol=1e-6), losses


class Batches(torch.utils.data.BatchSampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_an_epoch_reaches_a_sampler_below_what_skips_batches():
    batches = Batches(torch.utils.data.SequentialSampler(DATASET), 2, False)
    shard_of_rank = accelerate.data_loader.BatchSamplerShard(batches, 2, 0)
    loader = accelerate.skip_first_batches(torch.utils.data.DataLoader(DATASET, batch_sampler=shard_of_rank), 1)
    Steps(None, loader, 1).set_epoch(3)
    assert batches.epoch == 3


class OwnLoss(transformers.Trainer):
    def compute_loss(self, model, inputs, **_):
        return model(**inputs).loss


def test_a_loss_of_its_own_is_refused():
    model = make("llama")
    distca.transformers.attach(model)
    with tempfile.TemporaryDirectory() as folder:
        made = trainer_of(model, folder, 1)
        made.__class__ = OwnLoss
        with pytest.raises(ValueError, match="compute_loss of OwnLoss is its own"):
            distca.transformers.shard(made)
        made = trainer_of(model, folder, 1)
        made.compute_loss = lambda model, inputs, **_: model(**inputs).loss
        with pytest.raises(ValueError, match="compute_loss of Trainer is its own"):
            distca.transformers.shard(made)


def with_accelerate(port, batches, at_once, accumulated):
    """[(sync_gradients, end_of_dataloader)] of each step of Accelerate's own loop, two epochs; what is left of the loaders."""
    set_environment(port)
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model = make("llama")
    distca.transformers.attach(model)
    wrapped = accelerator.prepare(model)
    data = [{"input_ids": torch.arange(10) + i, "labels": torch.arange(10)} for i in range(2 * batches)]
    loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=1))
    seen, state = [], accelerate.state.GradientState()
    for _ in range(2):
        for batch in distca.transformers.shard(loader, model, at_once=at_once):
            with accelerator.accumulate(wrapped):
                accelerator.backward(wrapped(**batch).loss)
                seen.append((accelerator.sync_gradients, state.end_of_dataloader))
    left = [one for one in state.dataloader_references if one is not None]
    refusals = []
    for wrong in (lambda: distca.transformers.shard(loader, model, accumulate=2),
                  lambda: accelerate.skip_first_batches(distca.transformers.shard(loader, model), 1)):
        try:
            wrong()
        except (AttributeError, ValueError) as error:
            refusals.append(str(error))
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()
    return seen, len(left), refusals


def test_accelerate_hears_of_steps_and_not_of_the_loader(trainers):
    for at_once, steps in ((None, 5), (1, 10)):
        for seen, left, refusals in trainers.run(with_accelerate, trainers.store.port, 5, at_once, 2):
            epoch = [(step % 2 == 0 or step == steps, step == steps) for step in range(1, steps + 1)]
            assert seen == epoch * 2 and left == 0
            assert refusals[0].startswith("accumulate = 2 and gradient_accumulation_steps = 2 of Accelerate")
            assert "steps that are dealt are no loader that can be taken apart" in refusals[1]
