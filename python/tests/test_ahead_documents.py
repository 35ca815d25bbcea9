"""plan_ahead with distca.transformers.cu_seqlens_of: a forward computes the documents that its batch says, or is refused."""

from unittest import mock

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers_model import documents_of, exact_loss, full_gradients, keep_fp64, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402
from distca import _nano_batches  # noqa: E402
from distca._nano_batches import Ahead  # noqa: E402

LINE = "{} was written to after plan_ahead had planned it, or replaced: each batch has a tensor of its own"
LENGTHS = [[40, 7, 1, 19], [7, 40, 19, 1], [1, 1, 64, 1], [30, 30, 6, 1]]  # of each batch's documents
WRITES = {
    "numpy": lambda buffer, values: buffer.numpy().__setitem__(..., values.numpy()),
    "data": lambda buffer, values: buffer.data.copy_(values),
    "torch": lambda buffer, values: buffer.copy_(values),
}


def batches(said, write=None):
    """Batches whose documents the item `said` says. write: how a loader writes each into the buffers of the first."""
    buffers = {}
    for i, lengths in enumerate(LENGTHS):
        batch = packed(documents_of(lengths, seed=i), with_lengths=True)
        batch = {name: batch[name] for name in ("input_ids", "labels", said)}
        for name, value in batch.items() if write else ():
            WRITES[write](buffers.setdefault(name, value.clone()), value)
        yield {**batch, **buffers}


def attached(nano_batches):
    model = make(dtype=torch.float64)
    keep_fp64(model)
    distca.transformers.attach(model, nano_batches=nano_batches)
    return model


def trained(nano_batches, said, write=None, change=dict):
    """How many batches were trained, and the line of the error that came then. change: what a loop does to a batch."""
    model, count = attached(nano_batches), 0
    try:
        for batch in distca.plan_ahead(batches(said, write), distca.transformers.cu_seqlens_of(model)):
            model(**change(batch)).loss.backward()
            count += 1
    except ValueError as error:
        return count, str(error)
    return count, ""


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("said", ["position_ids", "cu_seq_lens_q"])
@pytest.mark.parametrize("nano_batches", [1, 2])
def test_a_buffer_that_the_loader_refills_is_named(two, nano_batches, said, write):
    assert two.run(trained, nano_batches, said, write) == [(1, LINE.format(said))] * 2
    assert two.run(trained, nano_batches, said) == [(len(LENGTHS), "")] * 2


def of_one_document(batch):
    tokens = batch["input_ids"].shape[1]
    said = {"position_ids": torch.arange(tokens)[None], "cu_seq_lens_q": torch.tensor([0, tokens])}
    return {name: said.get(name, value) for name, value in batch.items()}


def without(batch):
    return {name: value for name, value in batch.items() if name not in ("position_ids", "cu_seq_lens_q")}


@pytest.mark.parametrize("change", [of_one_document, without])
@pytest.mark.parametrize("said", ["position_ids", "cu_seq_lens_q"])
@pytest.mark.parametrize("nano_batches", [1, 2])
def test_documents_that_a_loop_replaces_are_named(two, nano_batches, said, change):
    assert two.run(trained, nano_batches, said, None, change) == [(1, LINE.format(said))] * 2


def copied(nano_batches):
    """The worst gradient where a loop gives other tokens, and positions that say the same documents otherwise."""
    model, alone, worst = attached(nano_batches), make(dtype=torch.float64, use_cache=False), 0.0
    keep_fp64(alone)
    for batch in distca.plan_ahead(batches("position_ids"), distca.transformers.cu_seqlens_of(model)):
        batch |= {"position_ids": batch["position_ids"] + 3, "input_ids": batch["input_ids"].flip(1)}
        labels = batch.pop("labels")
        for each in (model, alone):
            each.zero_grad()
            exact_loss(each(**batch).logits, labels, 3).backward()
            batch.pop("distca_ahead", None)
        worst = max(worst, worst_gradient(full_gradients(model), full_gradients(alone)))
    return worst


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_other_tensors_of_the_same_documents_are_taken(two, nano_batches):
    assert max(two.run(copied, nano_batches)) < 1e-10


def on_device(nano_batches):
    """(positions on a device whose numbers nobody can read any more, what is planned of them)."""
    positions = torch.zeros(1, 6, dtype=torch.int64, device="meta")
    with mock.patch.object(_nano_batches, "find_documents", lambda *_: [0, 2, 6]):
        return positions, Ahead((1, 6), {"position_ids": positions}, nano_batches)


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_on_a_device_the_object_and_its_version_count(nano_batches):
    positions, ahead = on_device(nano_batches)
    parts = ahead.parts
    assert ahead.take((1, 6), {"position_ids": positions}) is parts and ahead.take((1, 6), {"position_ids": positions}) is None
    for change in (lambda positions: positions.clone(), lambda positions: positions.add_(1)):
        positions, ahead = on_device(nano_batches)
        with pytest.raises(ValueError, match=LINE.format("position_ids")):
            ahead.take((1, 6), {"position_ids": change(positions)})


def test_a_copy_on_a_device_is_of_what_was_planned_on_the_cpu():
    for refills in (False, True):
        positions = torch.tensor([[0, 1, 0, 1, 2, 3]])
        ahead = Ahead((1, 6), {"position_ids": positions}, 2)
        parts, copy = ahead.parts, positions.to("meta")
        if not refills:
            assert ahead.take((1, 6), {"position_ids": copy}) is parts
            continue
        positions.numpy()[:] = range(6)
        with pytest.raises(ValueError, match=LINE.format("position_ids")):
            ahead.take((1, 6), {"position_ids": copy})
