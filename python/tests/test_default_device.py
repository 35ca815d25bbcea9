"""A default device is for the user's own tensors: distca says where each of its own is."""

import ast
import re
from pathlib import Path

import pytest
import torch

import distca as ours

FACTORIES = ("arange|as_tensor|asarray|empty|empty_strided|eye|full|linspace|ones|rand|randint|randn|randperm|scalar_tensor|"
             "tensor|zeros")
FILES = sorted(Path(ours.__file__).parent.glob("*.py"))


def without_device(source):
    """The calls of PyTorch's factories that say no device."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if "device" not in [keyword.arg for keyword in call.keywords]
            and re.fullmatch(rf"(.*\.)?torch\.({FACTORIES})", ast.unparse(call.func))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_tensor_that_distca_makes_says_its_device(file):
    assert without_device(file.read_text()) == []


def test_a_tensor_that_says_no_device_is_found():
    assert without_device("torch.zeros(3); self.torch.ones(2, device=d); np.zeros(3)") == ["torch.zeros(3)"]


ROW, POSITIONS = [[*range(1, 25)]], [[*range(5), *range(19)]]
PLACES = [0, 5, 24]
SAID = [{}, {"position_ids": POSITIONS}, {"cu_seq_lens_q": PLACES}, {"cu_seq_lens_q": PLACES, "position_ids": POSITIONS}]


def batch_of(said):
    items = {"input_ids": ROW, "labels": ROW, **said}
    return {name: torch.tensor(values, device="cpu") for name, values in items.items()}


def models(kind, nano_batches):
    """Two that are alike: one while no default device is set, one while it is a device that has no numbers."""
    import distca.transformers
    from transformers_model import make

    for default in (None, "meta"):
        model = make(kind)
        distca.transformers.attach(model, nano_batches=nano_batches)
        torch.set_default_device(default)
        try:
            yield model
        finally:
            torch.set_default_device(None)


@pytest.mark.parametrize("said", SAID, ids=lambda said: "+".join(said) or "rows")
@pytest.mark.parametrize("kind", ["llama", "mistral"])
@pytest.mark.parametrize("nano_batches", [1, 2])
def test_a_model_is_on_its_own_device(nano_batches, kind, said):
    pytest.importorskip("transformers")
    losses = []
    for model in models(kind, nano_batches):
        loss = model(**batch_of(said)).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]


def all_that_a_model_is_given_to(nano_batches):
    import distca.transformers

    found = []
    for model in models("llama", nano_batches):
        loaders = [[batch_of(said) for said in (SAID[1], {}, SAID[2])] for _ in range(3)]
        losses = [distca.transformers.evaluate(model, loaders[0]).loss]
        ahead = distca.plan_ahead(loaders[1], distca.transformers.cu_seqlens_of(model))
        for batches in (ahead, distca.transformers.shard(loaders[2], model)):
            for batch in batches:
                losses.append(model(**batch).loss.item())
        found.append((losses, bool(distca.verify(model, batch_of(SAID[1])))))
    return found


@pytest.mark.filterwarnings("ignore:ranks . and . gave the same tokens")
@pytest.mark.parametrize("nano_batches", [1, 2])
def test_steps_evaluations_and_plans_ahead_are_on_the_models_device(two_ranks, nano_batches):
    pytest.importorskip("transformers")
    for (plain, verified), (by_default, verified_by_default) in two_ranks.run(all_that_a_model_is_given_to, nano_batches):
        assert by_default == plain and len(plain) == 7 and verified and verified_by_default
