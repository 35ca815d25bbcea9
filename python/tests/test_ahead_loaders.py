"""A loader given to plan_ahead is a loader in every way in which Trainer and Accelerate use one."""

import multiprocessing
import os
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from rank_processes import Ranks
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from attention_model import cu_seqlens_of  # noqa: E402
from transformers_model import documents_of, make  # noqa: E402

import distca.transformers  # noqa: E402

COUNT = 22  # of items: in batches of 4 on 2 ranks, the last ones are filled up


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(COUNT))


class Turned(BatchSampler):
    """Batches whose order depends on the epoch, which somebody has to set."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        batches = [*super().__iter__()]
        return iter(batches[self.epoch :] + batches[: self.epoch])


KINDS = {  # the settings of Accelerate, and of the loader
    "shuffled": ({}, {"shuffle": True}),
    "uneven": ({"even_batches": False}, {}),
    "dispatched": ({"dispatch_batches": True}, {"shuffle": True}),
    "a stream": ({"dispatch_batches": False}, {"dataset": Stream()}),
    "a stream, dispatched": ({"dispatch_batches": True}, {"dataset": Stream()}),
    "workers that stay": ({}, {"shuffle": True, "num_workers": 1, "persistent_workers": True}),
    "batches of a sampler": ({}, {"batch_size": 1, "batch_sampler": Turned(RandomSampler(range(COUNT)), 4, False)}),
    "stateful": ({"use_stateful_dataloader": True}, {"shuffle": True}),
}


def set_environment(port):
    rank = str(dist.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def ahead(loader):
    return distca.plan_ahead(loader, lambda batch: cu_seqlens_of([len(batch)]))


def accelerator_of(port, **settings):
    set_environment(port)
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    torch.manual_seed(3)
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, dataloader_config=(
        accelerate.DataLoaderConfiguration(use_seedable_sampler=True, **settings)))


def loader_of(**settings):
    return DataLoader(**{"dataset": range(COUNT), "batch_size": 4} | settings)


def told(accelerator, loader, stop_after=99):
    """All that a program can see of an epoch: the batches, and what Accelerate tells while each of them trains."""
    seen = []
    for batch in loader:
        with accelerator.accumulate():
            synchronizes = accelerator.sync_gradients
        state = accelerator.gradient_state
        seen.append((batch.tolist(), synchronizes, state.end_of_dataloader, state.remainder, loader.iteration,
                     state.in_dataloader, str(getattr(loader, "dl_state_dict", None))))
        if len(seen) == stop_after:
            break
    return seen, accelerator.gradient_state.in_dataloader


def epochs(accelerator, loader):
    """Three epochs, one of them broken off at its last batch, one continued in its middle, and the state then."""
    length = 0 if isinstance(loader.dataset, IterableDataset) else len(loader)
    seen = [told(accelerator, loader), told(accelerator, loader, length or 2)]
    loader.set_epoch(2)
    seen.append(told(accelerator, accelerate.skip_first_batches(loader, 1)))
    loader.set_epoch(2)
    return seen + [told(accelerator, loader)]


def both(port, kind):
    settings, own = KINDS[kind]
    multiprocessing.current_process()._config["daemon"] = False  # else it may have no workers
    found = []
    for wrap in (lambda loader: loader, ahead):
        accelerator = accelerator_of(port, **settings)
        found.append(epochs(accelerator, wrap(accelerator.prepare(loader_of(**own)))))
    return found


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_sees_what_it_sees_without(two, kind):
    if kind == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader")
    answers = two.run(both, two.store.port, kind)
    for plain, planned in answers:
        assert planned == plain and any(end for _, _, end, *_ in planned[0][0])
    assert answers[0][0][0][0][0] != answers[1][0][0][0][0]


def divided(port):
    accelerator = accelerator_of(port)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = accelerator.prepare(ahead(loader_of(shuffle=True)))
    plain = accelerator_of(port).prepare(loader_of(shuffle=True))
    of_both = [[batch.tolist() for batch in one] for one in (loader, plain)]
    again = ahead(plain)
    return of_both, [str(one.message) for one in said], accelerator.prepare(again) is again


def test_prepare_divides_a_loader_that_is_planned_ahead(two):
    for (planned, plain), said, is_left in two.run(divided, two.store.port):
        assert planned == plain and is_left
        assert [line for line in said if "plan_ahead(accelerator.prepare(loader))" in line] == said and len(said) == 1


def test_attributes_and_class_are_those_of_the_loader():
    loader = loader_of()
    planned = ahead(loader)
    assert isinstance(planned, DataLoader) and isinstance(planned, distca.plan_ahead) and planned.batch_size == 4
    planned.worker_init_fn = planned.collate_fn = print
    assert loader.worker_init_fn is loader.collate_fn is print and not hasattr(planned, "set_epoch")
    del planned.worker_init_fn
    assert not hasattr(loader, "worker_init_fn")
    prepared = accelerate.data_loader.prepare_data_loader(loader, num_processes=2, process_index=0)
    for kind in (DataLoader, accelerate.data_loader.DataLoaderShard):
        assert isinstance(prepared, kind) and isinstance(ahead(prepared), kind)
    assert not isinstance(ahead(loader), accelerate.data_loader.DataLoaderShard)
    assert not isinstance(ahead([1]), (list, DataLoader))


def continued():
    """The batches that a stateful loader has left after each one, without plan_ahead and with it."""
    from torchdata.stateful_dataloader import StatefulDataLoader as stateful

    found = []
    for wrap in (lambda loader: loader, ahead):
        loader, left = wrap(stateful(range(9), batch_size=2)), []
        for _ in loader:
            fresh = wrap(stateful(range(9), batch_size=2))
            fresh.load_state_dict(loader.state_dict())
            left.append([batch.tolist() for batch in fresh])
        found.append(left)
    return found


def test_a_stateful_loader_goes_on_where_it_was(two):
    pytest.importorskip("torchdata.stateful_dataloader")
    for plain, planned in two.run(continued):
        assert planned == plain and [len(left) for left in plain] == [4, 3, 2, 1, 0]


def breaks_off():
    def batches():
        yield from [torch.ones(3), torch.ones(4)]
        raise OSError("the disk is gone")

    done = []
    try:
        for batch in ahead(batches()):
            done.append(len(batch))
    except OSError as error:
        return done, str(error)


def test_an_error_of_the_loader_comes_after_the_batches_before_it(two):
    assert two.run(breaks_off) == [([3, 4], "the disk is gone")] * 2


class Recording(transformers.Trainer):
    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        return distca.plan_ahead(loader, distca.transformers.cu_seqlens_of(self.model)) if self.plans else loader

    def training_step(self, model, inputs, *arguments):
        self.trained.append(inputs["input_ids"][inputs["position_ids"] == 0].tolist())
        return torch.zeros(())  # the batches matter, not the model


def train(folder, plans, resume=False):
    """The documents of each step of two epochs of 8 steps."""
    model = make("llama")
    distca.transformers.attach(model)
    dataset = [{"input_ids": [i, *document.tolist()]} for i, document in enumerate(documents_of([5] * 32))]
    trainer = Recording(
        model=model, train_dataset=dataset, args=transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, per_device_train_batch_size=2, num_train_epochs=2, save_steps=12,
            report_to="none", disable_tqdm=True, logging_steps=100),
        data_collator=transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True))
    trainer.plans, trainer.trained = plans, []
    trainer.train(resume_from_checkpoint=resume)
    return trainer.trained


def train_as_rank(port, *arguments):
    set_environment(port)
    accelerate.state.AcceleratorState._reset_state(True)
    torch.set_num_threads(1)
    return train(*arguments)


def test_a_resumed_run_of_trainer_has_the_batches_of_the_run_that_was_not_stopped(two):
    with tempfile.TemporaryDirectory() as folder:
        plain = two.run(train_as_rank, two.store.port, folder + "/plain", False)
        assert two.run(train_as_rank, two.store.port, folder, True) == plain
        rest = two.run(train_as_rank, two.store.port, folder, True, f"{folder}/checkpoint-12")
    assert rest == [steps[12:] for steps in plain] and [len(steps) for steps in plain] == [16, 16]
    first, second = ([document for steps in plain for step in steps[part] for document in step]
                     for part in (slice(8), slice(8, 16)))
    assert sorted(second) == [*range(32)] and second != first
