"""distca.transformers: what a model does around its decoder (its loss, its outputs) and heads that others give it."""

import types

import pytest
import torch

transformers = pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from transformers_model import documents_of, full_gradients, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402

functional = torch.nn.functional
LENGTHS = [23, 5, 1, 40, 14]


def own_cross_entropy(self, input_ids=None, labels=None, smoothing=0.0, ignored=-100, **keywords):
    """A mean over targets that knows of no num_items_in_batch."""
    logits = self.lm_head(self.model(input_ids=input_ids, **keywords).last_hidden_state)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=ignored,
                                    label_smoothing=smoothing)
    return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits)


def keywords_lost(self, input_ids=None, labels=None, **keywords):
    """A forward that calls loss_function without its keywords."""
    hidden = self.model(input_ids=input_ids, **keywords).last_hidden_state
    logits = self.lm_head(hidden)
    return transformers.modeling_outputs.CausalLMOutputWithPast(
        loss=self.loss_function(logits=logits, labels=labels, vocab_size=64), logits=logits)


def with_an_auxiliary_loss(self, **keywords):
    out = type(self).forward(self, **keywords)
    out.loss = out.loss + out.logits.logsumexp(-1).pow(2).mean()
    return out


def another_loss(logits, labels, vocab_size, **_):
    return logits[..., 0].float().exp().mean()


HEADS = {
    "own cross entropy": (own_cross_entropy, {}),
    "label smoothing": (own_cross_entropy, {"smoothing": 0.1}),
    "another ignore_index": (own_cross_entropy, {"ignored": 7}),
    "keywords are lost": (keywords_lost, {"num_items_in_batch": 17}),
    "None items": (None, {"num_items_in_batch": None}),
    "ignore_index of a call": (None, {"ignore_index": 7}),
    "an auxiliary loss": (with_an_auxiliary_loss, {}),
    "loss_function": (another_loss, {}),
    "some logits": (None, {"logits_to_keep": 3, "labels": None}),
}


def with_head(head):
    model = make(use_cache=False)
    if head is another_loss:
        model.loss_function = head
    elif head is not None:
        model.forward = types.MethodType(head, model)
    return model


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_that_of_the_whole_batch(head):
    head, given = HEADS[head]
    batch = packed(documents_of(LENGTHS))
    batch["labels"][batch["labels"] == -100] = given.get("ignored", given.get("ignore_index", -100))
    batch.update(given)
    want, got = with_head(head), with_head(head)
    distca.transformers.attach(got, nano_batches=2)
    outputs = [model(**batch) for model in (want, got)]
    for out in outputs:
        (out.logits.pow(2).mean() if out.loss is None else out.loss).backward()
    assert outputs[0].loss is None or abs(outputs[1].loss - outputs[0].loss) < 1e-5 * outputs[0].loss
    assert (outputs[1].logits - outputs[0].logits).abs().max() < 1e-4
    assert worst_gradient(full_gradients(got), full_gradients(want)) < 1e-4


def without_documents(head, nano_batches):
    """The loss and the largest gradient of a rank without documents while another one trains."""
    model = with_head(head)
    distca.transformers.attach(model, nano_batches=nano_batches)
    loss = model(**packed(documents_of(LENGTHS) if dist.get_rank() == 0 else [])).loss
    loss.backward()
    return loss.item(), max(gradient.abs().max().item() for gradient in full_gradients(model).values())


@pytest.mark.parametrize("nano_batches", [1, 2])
@pytest.mark.parametrize("head", [None, own_cross_entropy, keywords_lost])
def test_a_rank_without_documents_has_no_loss(two_ranks, head, nano_batches):
    (loss, gradient), empty = two_ranks.run(without_documents, head, nano_batches)
    assert 1 < loss < 20 and gradient > 0 and empty == (0, 0)


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_a_batch_without_targets_has_no_loss(nano_batches):
    model = make()
    distca.transformers.attach(model, nano_batches=nano_batches)
    batch = packed(documents_of(LENGTHS))
    for as_dictionary in (True, False):
        out = model(**{**batch, "labels": torch.full_like(batch["labels"], -100)}, return_dict=as_dictionary)
        assert out[0] == 0
        out[0].backward()
    assert max(gradient.abs().max() for gradient in full_gradients(model).values()) == 0


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_outputs_are_those_of_the_model(nano_batches):
    """None among the keywords is nothing, and a list may say of which layers outputs are wanted, where a version reads it."""
    plain, model = make(use_cache=False), make()
    distca.transformers.attach(model, nano_batches=nano_batches)
    batch = packed(documents_of(LENGTHS))
    given = {"return_dict": None, "token_type_ids": None, "labels": batch["labels"], "output_hidden_states": [0, 2]}
    want, got = plain(**{**batch, **given}), model(**{**batch, **given})
    assert abs(got.loss - want.loss) < 1e-5 and got.keys() == want.keys()
    assert [hidden is None for hidden in got.hidden_states] == [hidden is None for hidden in want.hidden_states]
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(got.hidden_states, want.hidden_states) if a is not None)


def fused_head(self, labels=None, fused=True, **keywords):
    """A head that others put in the place of a model's forward: it calls the decoder and needs no logits."""
    hidden = self.base_model(**keywords, use_cache=False).last_hidden_state[:, :-1]
    loss = functional.cross_entropy(self.get_output_embeddings()(hidden).flatten(0, 1), labels[:, 1:].flatten())
    return transformers.modeling_outputs.CausalLMOutputWithPast(loss=loss)


def train_fused(nano_batches, is_attached_first):
    """(distance of the loss, worst gradient, bytes sent) of a fused head."""
    models = make(), make()
    if is_attached_first:
        distca.transformers.attach(models[1], nano_batches=nano_batches)
    for model in models:
        model.forward = types.MethodType(fused_head, model)
    if not is_attached_first:
        distca.transformers.attach(models[1], nano_batches=nano_batches)
    batch, before = packed(documents_of(LENGTHS if dist.get_rank() == 0 else [3, 2])), distca.statistics().sent_bytes
    losses = [model(**batch).loss for model in models]
    for loss in losses:
        loss.backward()
    return (abs(losses[0] - losses[1]).item(), worst_gradient(full_gradients(models[1]), full_gradients(models[0])),
            distca.statistics().sent_bytes - before)


@pytest.mark.parametrize("nano_batches", [1, 2])
@pytest.mark.parametrize("is_attached_first", [True, False])
def test_a_head_that_calls_the_decoder_is_served(two_ranks, nano_batches, is_attached_first):
    for loss, gradient, sent in two_ranks.run(train_fused, nano_batches, is_attached_first):
        assert loss < 1e-5 and gradient < 1e-4 and sent > 0
