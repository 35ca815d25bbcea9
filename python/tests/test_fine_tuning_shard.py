"""TRL's SFTTrainer and PEFT's LoRA in two processes, their steps dealt over both, against one process."""

import math
import tempfile

import pytest
import torch
import torch.distributed as dist

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from test_fine_tuning import lora_config, words  # noqa: E402
from test_transformers_masks import of_experts  # noqa: E402
from test_transformers_shard import loss_of as step_loss_of  # noqa: E402
from test_transformers_shard_misuse import OfImages  # noqa: E402
from test_transformers_trainer import LENGTHS, set_environment  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from transformers_model import documents_of, keep_fp64, loss_of, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402

ROWS = [{"input_ids": document.tolist()} for document in documents_of(LENGTHS)]
COMPARED = {"loss": 2e-6, "grad_norm": 1e-4, "eval_loss": 2e-6, "entropy": 1e-5, "mean_token_accuracy": 1e-6, "num_tokens": 0}


def sft_trainer(model, folder, has_lora):
    """Packed rows of at most 200 tokens, one of each rank at a time."""
    import datasets
    import trl

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), eos_token="1", pad_token="0")
    torch.manual_seed(1)  # of LoRA
    return trl.SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(ROWS),
        eval_dataset=datasets.Dataset.from_list(ROWS[:9]), peft_config=lora_config(task_type="CAUSAL_LM") if has_lora else None,
        args=trl.SFTConfig(
            output_dir=folder, use_cpu=True, bf16=False, max_length=200, packing=True, padding_free=True, max_steps=4,
            per_device_train_batch_size=1, per_device_eval_batch_size=1, gradient_accumulation_steps=2, learning_rate=1e-3,
            logging_steps=1, eval_strategy="steps", eval_steps=2, save_strategy="no", report_to="none", disable_tqdm=True,
            gradient_checkpointing=False))


def trained(model, has_lora, is_dealt):
    """([(name, value)] of what was logged, the weights that were trained)."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = sft_trainer(model, folder, has_lora)
        if is_dealt:
            distca.transformers.shard(trainer, at_once=1)
        trainer.train()
    weights = {name: p.detach().double().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    return [(name, entry[name]) for entry in trainer.state.log_history for name in COMPARED if name in entry], weights


def of_kind(kind):
    model = make()
    model.__class__ = kind
    return model


def dealt(port, kind, nano_batches, has_lora):
    set_environment(port)
    model, before = of_kind(kind), distca.statistics().sent_bytes
    distca.transformers.attach(model, nano_batches=nano_batches)
    return *trained(model, has_lora, is_dealt=True), distca.statistics().sent_bytes - before


@pytest.mark.parametrize("kind, nano_batches, has_lora", [
    (transformers.LlamaForCausalLM, 1, False), (transformers.LlamaForCausalLM, 2, True), (OfImages, 1, False)])
def test_trl_has_the_losses_and_weights_of_one_process(two, kind, nano_batches, has_lora):
    pytest.importorskip("trl")
    if has_lora:
        pytest.importorskip("peft")
    wanted, want_weights = trained(of_kind(kind), has_lora, is_dealt=False)
    assert [name for name, _ in wanted].count("loss") == 4 and [name for name, _ in wanted].count("eval_loss") == 2
    for logged, weights, sent in two.run(dealt, two.store.port, kind, nano_batches, has_lora):
        assert sent > 0
        for (name, value), (of, want) in zip(logged, wanted, strict=True):
            assert name == of and math.isclose(value, want, rel_tol=COMPARED[name]), (name, logged, wanted)
        assert worst_gradient(weights, want_weights) < 1e-4


def test_experts_are_refused_until_their_routers_have_no_loss():
    """SFTTrainer asks for it, whatever the model's configuration says."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), eos_token="1", pad_token="0")
    for weight in (0.001, 0.0):
        model = of_experts("Qwen3Moe")
        distca.transformers.attach(model)
        with tempfile.TemporaryDirectory() as folder:
            trainer = trl.SFTTrainer(model=model, processing_class=tokenizer, train_dataset=datasets.Dataset.from_list(ROWS), args=trl.SFTConfig(
                output_dir=folder, use_cpu=True, bf16=False, padding_free=True, max_length=None, report_to="none", router_aux_loss_coef=weight))
            if weight == 0:
                distca.transformers.shard(trainer)
            else:
                with pytest.raises(ValueError, match=r"^output_router_logits: .*SFTTrainer: router_aux_loss_coef=0"):
                    distca.transformers.shard(trainer)


def test_alora_is_refused():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make(), lora_config(alora_invocation_tokens=[7]))
    distca.transformers.attach(model)
    for refused in (lambda: distca.transformers.shard([], model), lambda: distca.transformers.evaluate(model, [])):
        with pytest.raises(ValueError, match="^alora_invocation_tokens: aLoRA looks for them in a rank's rows"):
            refused()


def lora(nano_batches, is_base):
    """(differences of loss and gradients to one process with sdpa, a document at a time; bytes that were sent)."""
    import peft

    rank, given, models = dist.get_rank(), [[300, 7, 41], [12]], []
    documents = [documents_of(lengths, seed=r) for r, lengths in enumerate(given)]
    items = sum(sum(lengths) - len(lengths) for lengths in given)
    for is_attached in (False, True):
        model = make(dtype=torch.float64)
        keep_fp64(model)
        torch.manual_seed(1)
        wrapped = peft.get_peft_model(model, lora_config()).double()
        if is_attached:
            distca.transformers.attach(model if is_base else wrapped, nano_batches=nano_batches)
        models.append(wrapped)
    one, model = models
    want = sum(loss_of(one, packed([document]), items) for of_rank in documents for document in of_rank)
    want.backward()
    wrapped, before = DistributedDataParallel(model), distca.statistics().sent_bytes
    loader = [packed(documents[rank])]
    for batch in distca.transformers.shard(loader, model.get_base_model() if is_base else model):
        loss = step_loss_of(wrapped, batch, "fp64")
        loss.backward()
    total = loss.detach() / 2
    dist.all_reduce(total)
    gradients = [{name: p.grad for name, p in of.named_parameters() if p.requires_grad} for of in (model, one)]
    of_evaluation = distca.transformers.evaluate(model.get_base_model() if is_base else model, loader).loss
    differences = max(abs(total.item() - want.item()), abs(of_evaluation - want.item())) / want.item()
    return differences, worst_gradient(*gradients), distca.statistics().sent_bytes - before


@pytest.mark.parametrize("nano_batches, is_base", [(1, True), (2, False)])
def test_lora_has_the_gradients_of_one_process(two, nano_batches, is_base):
    pytest.importorskip("peft")
    for of_loss, of_gradients, sent in two.run(lora, nano_batches, is_base):
        assert of_loss < 1e-10 and of_gradients < 1e-10 and sent > 0
