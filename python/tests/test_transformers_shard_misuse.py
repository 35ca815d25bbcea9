"""Steps that are dealt where something takes them otherwise: another model, another loss, a copy of their tensors."""

import functools
import math

import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rank_processes import Ranks  # noqa: E402
from test_transformers_shard_trainer import losses_of, trainer_of  # noqa: E402
from test_transformers_trainer import set_environment  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from transformers_model import documents_of, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402

NOT_ATTACHED = "given a step of distca.transformers.shard, whose documents are cut over ranks, and"


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as both:
        yield both


def attached(*arguments, **settings):
    model = make(*arguments)
    distca.transformers.attach(model, **settings)
    return model


def uneven():
    """A loader whose one step is cut: one rank gives a long document, the other a short one."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return [packed(documents_of([7 if rank else 1200], seed=rank))]


def of_a_copy():
    model = attached().eval()
    with torch.no_grad():
        for batch in distca.transformers.shard(uneven(), model):
            try:
                model(**{name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)})
            except ValueError as error:
                return str(error)


def test_a_copy_of_a_step_without_its_item_is_found_where_nothing_is_sent(ranks):
    assert all(found.startswith("these input_ids are of a step that shard has dealt") for found in ranks.run(of_a_copy))


def given_to_another(attn, evaluates):
    model, other = attached(), make(attn=attn)
    try:
        if evaluates:
            distca.transformers.evaluate(model, uneven(), wrapped=other)
        for batch in distca.transformers.shard(uneven(), model):
            other(**batch)
    except (RuntimeError, ValueError) as error:
        return str(error)


def of_embeddings():
    model = attached()
    try:
        for batch in distca.transformers.shard(uneven(), model):
            model(inputs_embeds=model.get_input_embeddings()(batch["input_ids"]), position_ids=batch["position_ids"]).logits.sum()
    except RuntimeError as error:
        return str(error)


def test_embeddings_of_a_step_without_its_item_are_found_in_training(ranks):
    assert all(found.startswith("a batch of distca.transformers.shard has an item") for found in ranks.run(of_embeddings))


@pytest.mark.parametrize("attn, evaluates", [("sdpa", False), ("flex_attention", False), ("sdpa", True), ("eager", True)])
def test_a_model_that_is_not_attached_refuses_a_step(ranks, attn, evaluates):
    assert all(NOT_ATTACHED in found for found in ranks.run(given_to_another, attn, evaluates))


def test_another_model_computes_what_it_did_beside_steps():
    model, other = attached(), make()
    batch = packed(documents_of([30, 12]))
    before = other(**batch, use_cache=False).loss
    list(distca.transformers.shard([batch], model))
    assert torch.equal(other(**batch, use_cache=False).loss, before)


class OfImages(transformers.LlamaForCausalLM):
    accepts_loss_kwargs = False  # as Qwen2.5-VL and many others say


SAMPLES = [{"input_ids": document.tolist(), "labels": [-100] * (kept and len(document) - kept) + document.tolist()[-kept:]}
           for document, kept in zip(documents_of([301, 5, 77, 129]), (0, 2, 2, 2))]


def trained(port, folder, kind, deals):
    if deals:
        set_environment(port)
    torch.set_num_threads(1)
    model = make()
    model.__class__ = kind
    if deals:
        distca.transformers.attach(model)
    trainer = trainer_of(model, folder, 1, per_device_train_batch_size=2 if deals else 4, max_steps=1, eval_steps=1)
    trainer.train_dataset = trainer.eval_dataset = SAMPLES
    if deals:
        distca.transformers.shard(trainer)
    trainer.train()
    return losses_of(trainer)


def test_a_trainer_divides_by_all_targets_whatever_its_model_says_of_its_loss(ranks, tmp_path):
    """Rank 0 has 300 targets and more, rank 1 a few."""
    wanted = dict(trained(None, tmp_path, transformers.LlamaForCausalLM, False))
    for found in ranks.run(trained, ranks.store.port, str(tmp_path), OfImages, True):
        for name, value in found:
            assert math.isclose(value, wanted[name], rel_tol=1e-4 if name == "grad_norm" else 2e-6), (found, wanted)


def test_a_trainer_that_makes_its_model_anew_is_refused(tmp_path):
    arguments = transformers.TrainingArguments(output_dir=tmp_path, use_cpu=True, report_to="none")
    trainer = transformers.Trainer(model_init=lambda: make(), args=arguments, train_dataset=SAMPLES)
    distca.transformers.attach(trainer.model)
    with pytest.raises(ValueError, match=r"^model_init: train\(\) makes another model, which is not attached"):
        distca.transformers.shard(trainer)


def gradients_of(calls, whole):
    """Of a step under checkpointing, of layers or the whole model, that is called with it so many times for one backward."""
    model = make()
    if not whole:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    distca.transformers.attach(model)
    (batch,) = distca.transformers.shard([packed(documents_of([300, 41], seed=dist.get_rank()))], model)
    call = functools.partial(checkpoint, model, use_reentrant=False) if whole else model
    loss = sum(call(**batch, use_cache=False).loss for _ in range(calls))
    try:
        loss.backward()
    except ValueError as error:
        return str(error)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_step_may_go_through_models_twice_before_a_backward_under_checkpointing(ranks):
    once = ranks.run(gradients_of, 1, False)
    for of_rank, whole, twice, refused in zip(once, ranks.run(gradients_of, 1, True), ranks.run(gradients_of, 2, False),
                                              ranks.run(gradients_of, 2, True), strict=True):
        assert worst_gradient(whole, of_rank) < 1e-5
        assert worst_gradient(twice, {name: 2 * gradient for name, gradient in of_rank.items()}) < 1e-5
        assert refused.startswith("several forwards with one step of shard wait for their backwards, and what is checkpointed is")


@pytest.mark.parametrize("attn, line", [("sdpa", NOT_ATTACHED), ("eager", NOT_ATTACHED)])
def test_a_trainer_whose_model_was_exchanged_is_found(tmp_path, attn, line):
    trainer = trainer_of(attached(), tmp_path, 1)
    distca.transformers.shard(trainer)
    trainer.model = trainer.model_wrapped = make(attn=attn)
    with pytest.raises((RuntimeError, ValueError), match=line):
        trainer.train()


def cross_entropy(logits, targets, items):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / items


class FusedInTraining(transformers.LlamaForCausalLM):
    """Its loss in training is another function, and shifts labels."""

    def forward(self, labels=None, num_items_in_batch=None, **others):
        if not self.training or labels is None:
            return super().forward(labels=labels, num_items_in_batch=num_items_in_batch, **others)
        others.pop("shift_labels", None)
        found = super().forward(**others)
        found.loss = cross_entropy(found.logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return found


def test_a_loss_that_is_another_one_in_training_is_found():
    model = make()
    model.__class__ = FusedInTraining
    distca.transformers.attach(model)
    with pytest.warns(UserWarning, match="^the loss of FusedInTraining is not that of shift_labels"):
        distca.transformers.shard([], model)
    assert model.training and not any(one.training for one in model.eval().modules())
    distca.transformers.shard([packed(documents_of([5]))], attached())
    assert not any(one.training for one in model.modules())


def with_mixed_precision():
    model = attached()
    steps = distca.transformers.shard([packed(documents_of([90, 40], seed=dist.get_rank()))] * 2, model)
    for module in (*model.model.layers, model):
        fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    losses = []
    for batch in steps:
        losses.append(model(**batch).loss)
        losses[-1].backward()
    return [loss.item() for loss in losses]


def test_fsdp_may_rebuild_the_arguments_of_a_call(ranks):
    for losses in ranks.run(with_mixed_precision):
        assert len(losses) == 2 and all(map(math.isfinite, losses))


def fetching_ahead():
    """Between steps, batches of another data set of the same shape are trained, too."""
    model, losses = attached(), []
    steps = iter(distca.transformers.shard([packed(documents_of([1280] if dist.get_rank() else [], seed=i)) for i in range(3)], model))
    batch = next(steps)
    while batch is not None:
        model(**packed(documents_of([batch["input_ids"].shape[1]], seed=9))).loss.backward()
        following = next(steps, None)
        losses.append(model(**batch).loss)
        losses[-1].backward()
        batch = following
    return len(losses)


def test_a_loop_may_fetch_a_step_before_it_trains_the_one_before(ranks):
    assert ranks.run(fetching_ahead) == [3, 3]


def test_positions_that_jump_beside_a_mask_are_refused():
    """Without a mask, Transformers takes each run of positions for a document, too; with one, it does not."""
    ids = documents_of([40])[0][None]
    batch = {"input_ids": ids, "labels": ids, "position_ids": torch.cat([torch.arange(20), torch.arange(500, 520)])[None]}
    one, model = make(), attached()
    assert torch.allclose(model(**batch).loss, one(**batch, use_cache=False).loss, rtol=1e-5)
    with pytest.raises(ValueError, match="^position_ids jump forward within a row, beside an attention_mask"):
        model(**batch, attention_mask=torch.ones_like(ids))
    with pytest.raises(RuntimeError, match="position_ids jump forward within a row, beside an attention_mask"):
        next(iter(distca.transformers.shard([{**batch, "attention_mask": torch.ones_like(ids)}], model)))


def test_whoever_shifts_the_labels_of_a_step_trains_on_nothing():
    model = attached()
    (batch,) = distca.transformers.shard([packed(documents_of([50]))], model)
    assert bool((batch["labels"] == -100).all()) and int((batch["shift_labels"] != -100).sum()) == 49
    logits = model(**batch).logits
    shifted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert math.isnan(shifted.item())
    (plain,) = distca.shard([packed(documents_of([50]))], shape=distca.plan.Shape(4, 2, 16))
    assert "labels" not in plain and "shift_labels" in plain
