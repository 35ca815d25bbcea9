"""Transformers' own Trainer and Accelerate in two processes against one process."""

import os
import tempfile

import pytest
import torch

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from rank_processes import Ranks  # noqa: E402
from transformers_model import documents_of, full_gradients, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402
from distca._group import name_of  # noqa: E402
from distca._ops import ops  # noqa: E402

LENGTHS = [5, 200, 31, 2, 90, 17, 3, 64, 150, 7, 7, 40, 300, 11, 26, 9, 1, 80, 33, 120, 2, 55, 19, 260, 8, 70, 4, 13,
           100, 21, 6, 45]


class Ahead(transformers.Trainer):
    def get_train_dataloader(self):
        return distca.plan_ahead(super().get_train_dataloader(), distca.transformers.cu_seqlens_of(self.model))


def set_environment(port):
    """As torchrun sets it."""
    rank = str(torch.distributed.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def train(nano_batches, accumulated):
    """[(name, loss)] of 4 steps of AdamW and of the evaluations in between. Without nano_batches: with sdpa."""
    torch.set_num_threads(1)
    model = make("llama")
    if nano_batches:
        distca.transformers.attach(model, nano_batches=nano_batches)
    dataset = [{"input_ids": document.tolist()} for document in documents_of(LENGTHS)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = (Ahead if nano_batches == 2 else transformers.Trainer)(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder, use_cpu=True, per_device_train_batch_size=2, per_device_eval_batch_size=2,
                gradient_accumulation_steps=accumulated, max_steps=4, learning_rate=1e-3, logging_steps=1,
                eval_strategy="steps", eval_steps=2, save_strategy="no", report_to="none", disable_tqdm=True),
            train_dataset=dataset,
            eval_dataset=dataset[:8],
            data_collator=transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True),
        )
        trainer.train()
    names = ("loss", "eval_loss")
    return [(name, entry[name]) for entry in trainer.state.log_history for name in names if name in entry]


def planned_by_this_thread():
    return ops.counts(name_of(None))[-1]


def train_as_rank(port, nano_batches, accumulated):
    set_environment(port)
    before = distca.statistics(), planned_by_this_thread()
    losses = train(nano_batches, accumulated)
    after = distca.statistics()
    return (losses, after.forwards - before[0].forwards, after.sent_bytes - before[0].sent_bytes,
            planned_by_this_thread() - before[1])


@pytest.fixture(scope="module")
def trainers():
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_two_processes_have_the_losses_of_one(trainers, nano_batches):
    one_process = train(0, 4)
    # Trainer weighs batches of an evaluation otherwise in two processes than in one.
    plain, _, nothing_sent, _ = trainers.run(train_as_rank, trainers.store.port, 0, 2)[0]
    wanted = [pair if pair[0] == "eval_loss" else one for pair, one in zip(plain, one_process, strict=True)]
    assert [name for name, _ in wanted] == ["loss", "loss", "eval_loss"] * 2 and nothing_sent == 0
    for losses, forwards, sent, planned in trainers.run(train_as_rank, trainers.store.port, nano_batches, 2):
        for (name, loss), (of, want) in zip(losses, wanted, strict=True):
            assert name == of and abs(loss - want) <= 1e-6 * want, (name, loss, want)
        assert forwards == 2 * 4 * 2 * nano_batches and sent > 0  # layers, steps, accumulated: evaluation sends nothing
        assert planned == 8 if nano_batches == 1 else planned < 16  # with 2 nano-batches, ahead


def accumulate(port):
    """Two accumulated batches of bf16 autocast under Accelerate's DDP; the distance to fp32 of a process alone."""
    set_environment(port)
    rank = torch.distributed.get_rank()
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model, one = make("llama"), make("llama")
    distca.transformers.attach(model, nano_batches=2)
    wrapped = accelerator.prepare(model)
    batches = [[packed(documents_of(LENGTHS[4 * i + 2 * r :][:2])) for r in range(2)] for i in range(2)]
    before = distca.statistics()
    for of_ranks in batches:
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(**of_ranks[rank], num_items_in_batch=100).loss)
        for batch in of_ranks:
            (one(**batch, use_cache=False, num_items_in_batch=100).loss / 4).backward()
    sent = distca.statistics().sent_bytes - before.sent_bytes
    distance = worst_gradient(full_gradients(model), full_gradients(one))
    bare = accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
    again, want = bare(**batches[0][rank]).logits, one(**batches[0][rank], use_cache=False).logits
    accelerate.state.AcceleratorState._reset_state()
    return distance, sent, bare is model and (again - want).abs().max().item() < 1e-5


def test_accelerate_with_autocast_and_accumulation(trainers):
    for distance, sent, unwrapped in trainers.run(accumulate, trainers.store.port):
        assert distance < 0.1 and sent > 0 and unwrapped
