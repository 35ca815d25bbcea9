"""Steps and evaluations that are dealt, where a model's loss is its own or a sample has several documents; one process."""

import copy
import math

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch  # noqa: E402
from test_transformers_shard_trainer import losses_of, trainer_of  # noqa: E402
from transformers_model import documents_of, make, packed  # noqa: E402

import distca.transformers  # noqa: E402


class OwnLoss(transformers.LlamaForCausalLM):
    """Its loss shifts labels, as most models' of one's own do."""

    def forward(self, labels=None, **others):
        found = super().forward(**others)
        if labels is not None:
            found.loss = torch.nn.functional.cross_entropy(found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return found


def own_loss():
    model = OwnLoss(make("llama").config)
    distca.transformers.attach(model)
    return model


def test_a_loss_of_its_own_gets_no_labels_that_are_shifted_already(tmp_path):
    loader = [packed(documents_of([20, 9]))]
    with pytest.warns(UserWarning, match="^the loss of OwnLoss is not that of shift_labels divided by num_items_in_batch: steps have "
                                         "no labels, compute the loss of the logits and shift_labels$"):
        batch, = distca.transformers.shard(loader, own_loss())
    assert "shift_labels" in batch and "labels" not in batch
    with pytest.raises(ValueError, match="the loss of OwnLoss .*: not served$"):
        distca.transformers.shard(trainer_of(own_loss(), tmp_path, 1))
    with torch.device("meta"):  # as where weights are sharded: its loss cannot be tried
        model = own_loss()
    with pytest.warns(UserWarning, match="^the loss of OwnLoss cannot be tried, since weights are sharded or missing"):
        distca.transformers.shard(loader, model)
    model = make("llama")
    distca.transformers.attach(model)
    batch, = distca.transformers.shard(loader, model)
    assert bool((batch["labels"] == -100).all()) and bool((batch["shift_labels"] != -100).any())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_models_of_transformers_have_the_loss_that_is_expected(kind, recwarn):
    model = make(kind, torch.bfloat16)
    distca.transformers.attach(model)
    distca.transformers.shard([], model)
    assert not recwarn.list


class Joined:
    """Joins samples to one row, as `DataCollatorWithFlattening` does, where a sample has several documents."""

    def __call__(self, samples):
        ids, positions = ([number for sample in samples for number in sample[name]] for name in ("input_ids", "position_ids"))
        labels = [number if at else -100 for number, at in zip(ids, positions)]
        return {name: torch.tensor([values]) for name, values in
                (("input_ids", ids), ("position_ids", positions), ("labels", labels))}


def test_an_evaluation_that_was_interrupted_changes_no_loss_of_training(tmp_path):
    losses = []
    for interrupted in (False, True):
        model = make("llama")
        distca.transformers.attach(model)
        trainer = trainer_of(model, tmp_path, 1, eval_strategy="no")
        distca.transformers.shard(trainer)
        batches = iter(trainer.get_eval_dataloader())
        if interrupted:
            next(batches)
        trainer.train()
        losses.append(losses_of(trainer))
    assert losses[0] == losses[1]


def test_an_evaluation_weighs_samples_of_several_documents_as_one_process_does(tmp_path):
    lengths = [[9, 5, 30, 2], [40, 3], [7, 100, 3, 3, 2]]
    samples = [{"input_ids": torch.cat(documents_of(of, seed=i)).tolist(),
                "position_ids": [at for length in of for at in range(length)]} for i, of in enumerate(lengths)]
    losses = []
    for deals in (False, True):
        model = make("llama")
        distca.transformers.attach(model)
        trainer = trainer_of(model, tmp_path, 1)
        trainer.data_collator, trainer.eval_dataset = Joined(), samples
        if deals:
            distca.transformers.shard(trainer)
        losses.append(trainer.evaluate()["eval_loss"])
    assert math.isclose(*losses, rel_tol=1e-6), losses


@pytest.mark.parametrize("arguments, line", [
    ({"accumulate": 4}, "accumulate = 4: a Trainer accumulates by its gradient_accumulation_steps"),
    ({"gradients": "sum"}, "gradients = 'sum': a Trainer takes the mean over ranks"),
    ({"model": 1}, "model: a Trainer has its own, leave it out"),
], ids=str)
def test_a_trainer_takes_no_arguments_that_it_would_ignore(tmp_path, arguments, line):
    model = make("llama")
    distca.transformers.attach(model)
    with pytest.raises(ValueError, match=line):
        distca.transformers.shard(trainer_of(model, tmp_path, 1), **arguments)


def test_models_of_one_configuration_do_not_change_each_others_attention():
    config = make("llama").config
    one, other = transformers.LlamaForCausalLM(config), transformers.LlamaForCausalLM(config)
    batch = packed(documents_of([20, 9]))
    before = config._attn_implementation
    distca.transformers.attach(one)
    with pytest.raises(ValueError, match="needs a copy of its own"):
        other(**batch)
    distca.transformers.attach(other)
    wanted = other(**batch).loss
    distca.transformers.detach(one)
    assert config._attn_implementation == "distca" and torch.equal(other(**batch).loss, wanted)
    copied = copy.deepcopy(other)
    distca.transformers.detach(other)
    assert config._attn_implementation == before and copied.config._attn_implementation == "distca"
    distca.transformers.detach(copied)
    assert copied.config._attn_implementation == before
