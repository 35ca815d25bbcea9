"""TRL's SFTTrainer and PEFT's LoRA with an attached model against the same without it. Skipped where these are not."""

import os
import tempfile

import pytest
import torch

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from rank_processes import Ranks  # noqa: E402
from transformers_model import documents_of, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402

LENGTHS = [5, 90, 31, 2, 60, 17, 3, 64, 50, 7, 7, 40, 130, 11, 26, 9]


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as ranks:
        yield ranks


def of_trl(port, is_attached):
    """The losses of three steps of packed documents."""
    import datasets
    import trl

    rank = str(torch.distributed.get_rank())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    model = make()
    if is_attached:
        distca.transformers.attach(model)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), eos_token="1", pad_token="0")
    rows = [{"input_ids": document.tolist()} for document in documents_of(LENGTHS)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            model=model, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(rows),
            args=trl.SFTConfig(
                output_dir=folder, use_cpu=True, bf16=False, max_length=256, packing=True, padding_free=True, max_steps=3,
                per_device_train_batch_size=1, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none",
                disable_tqdm=True, gradient_checkpointing=False))
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def words():
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(64)}, unk_token="0"))


def test_trl(two):
    pytest.importorskip("trl")
    plain, attached = two.run(of_trl, two.store.port, False), two.run(of_trl, two.store.port, True)
    assert len(plain[0]) == 3
    for got, want in zip(attached[0], plain[0], strict=True):
        assert abs(got - want) <= 1e-5 * want


def lora_config(**changes):
    import peft

    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **changes)


def of_lora(nano_batches):
    """(the loss, {name: gradient}) with LoRA, summed over ranks; nano_batches 0: with sdpa, a document at a time."""
    import peft

    rank, items = torch.distributed.get_rank(), sum(length - 1 for length in LENGTHS)
    documents = documents_of(LENGTHS)[rank::2]
    model = make()
    if nano_batches:
        distca.transformers.attach(model, nano_batches=nano_batches)
    torch.manual_seed(1)
    model = peft.get_peft_model(model, lora_config())
    batches = [documents] if nano_batches else [[document] for document in documents]
    losses = [model(**packed(batch), num_items_in_batch=items).loss for batch in batches]
    sum(losses).backward()
    return sum(losses).item(), {name: p.grad.double() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_lora(two, nano_batches):
    pytest.importorskip("peft")
    for (loss, gradients), (want, wanted) in zip(two.run(of_lora, nano_batches), two.run(of_lora, 0)):
        assert abs(loss - want) <= 1e-5 * want and worst_gradient(gradients, wanted) < 1e-4
