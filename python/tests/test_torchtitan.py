"""TorchTitan's Trainer with distca.torchtitan, against its own in one process; what is refused, in which words.

A device and what needs one are stood in for by torchtitan_model.py: nothing here has run on a GPU.
"""

import dataclasses
import pathlib
import shutil
import sys
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from rank_processes import Ranks

pytest.importorskip("torchtitan")

import torchtitan_model as titan  # noqa: E402
from attention_model import cu_seqlens_of, sdpa  # noqa: E402
from pairs import pairs_of  # noqa: E402
from torchtitan import trainer as stock  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.loss import ChunkedLossWrapper, MSELoss  # noqa: E402
from torchtitan.components.validate import Validator  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.config.override import derive  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: E402
from torchtitan.models.common.attention import (  # noqa: E402
    BaseAttention,
    ScaledDotProductAttention,
    VarlenAttention,
    create_varlen_metadata_for_document,
)
from torchtitan.models.llama3 import Llama3Model  # noqa: E402

import distca as ours  # noqa: E402
import distca.torchtitan  # noqa: E402
from distca import _versions  # noqa: E402
from distca._deal import DEALT  # noqa: E402

# Of weights in float64 (torchtitan_model.py). TorchTitan sums losses in float32.
BOUND = {"loss": 1e-5, "norm": 1e-6, "gradient": 1e-6, "parameter": 1e-6}
CHECKPOINTING = {"none": None, "selective": SelectiveAC.Config, "full": FullAC.Config}
LAYOUTS = {"FSDP": {}, "HSDP": dict(data_parallel_replicate_degree=2, data_parallel_shard_degree=1)}


@pytest.fixture(scope="module")
def one():
    with Ranks(1) as ranks:
        yield ranks


def config_of(layout="FSDP", checkpointing="none", **given):
    kind = CHECKPOINTING[checkpointing]
    return titan.config_of(checkpointing=kind and kind(), **LAYOUTS[layout], **given)


def watched(trainer):
    """[(document, begin, end)] of this rank's pieces of every batch, and how many rows it had; and the trainer."""
    seen, process = [], trainer.post_dataloading_process

    def post_dataloading_process(inputs, labels):
        seen.append((inputs[DEALT].pieces[0].tolist(), labels.numel()))
        return process(inputs, labels)

    trainer.post_dataloading_process = post_dataloading_process
    return seen, trainer


def alone(given):
    return titan.trained(titan.with_sdpa(config_of(**given)))[0]


def dealt(given, at_once):
    before = ours.statistics()
    found, (seen, trainer) = titan.trained(distca.torchtitan.use(config_of(**given), at_once), look=watched)
    done = ours.statistics()
    return found, seen, trainer.ntokens_seen, done.forwards - before.forwards, done.sent_bytes - before.sent_bytes


def compared(found, want):
    """(by how much the worst differs from what is wanted, of what may be, and which that is)."""
    losses, norms, gradients, parameters = (dict(enumerate(part)) if isinstance(part, list) else part for part in found)
    assert len(losses) == len(want[0]) > 0
    pairs = {(name, i): (got[i], wanted[i])
             for name, got, wanted in (("loss", losses, want[0]), ("norm", norms, want[1])) for i in got}
    differs = {name: abs(got - wanted) / abs(wanted) for name, (got, wanted) in pairs.items()}
    for part, of_part, wanted in (("gradient", gradients, want[2]), ("parameter", parameters, want[3])):
        assert set(of_part) == set(wanted)
        differs |= {(part, name): titan.distance(of_part[name], wanted[name]) for name in wanted}
    return max((value / BOUND[name[0]], name) for name, value in differs.items())


@pytest.mark.parametrize("model, window, chunks, at_once, checkpointing, layout", pairs_of(
    model=["llama3", "qwen3"], window=[None, (-1, 0), (20, 0)], chunks=[0, 5], at_once=[None, 1],
    checkpointing=[*CHECKPOINTING], layout=[*LAYOUTS]), ids=str)
def test_a_step_is_that_of_one_process(one, two, model, window, chunks, at_once, checkpointing, layout):
    usual = dict(model=model, window=window, checkpointing=checkpointing)
    want, = one.run(alone, dict(**usual, rows=2, accumulated=2))
    answers = two.run(dealt, dict(**usual, layout=layout, chunks=chunks, accumulated=2, ranks=2), at_once)
    steps, layers, passes = 2, 2, 2 * (2 if at_once else 1)
    assert sum(tokens for _, _, tokens, *_ in answers) == steps * 2 * 2 * titan.TOKENS  # none is filling
    for found, seen, _, forwards, _ in answers:
        share, worst = compared(found, want)
        assert share <= 1, (share, worst)
        assert forwards == steps * layers * passes and len(seen) == steps * passes
        assert all(rows % 32 == 0 == rows % max(chunks, 1) for _, rows in seen)  # quantized linears take multiples of 32
    check_cuts(answers, titan.TOKENS * (at_once or 2), 32 * max(chunks, 1))


def check_cuts(answers, tokens, multiple):
    """Rows are dealt evenly, and documents are cut over ranks."""
    cut = 0
    for (here, rows), (there, others) in zip(*(seen for _, seen, *_ in answers)):
        assert tokens <= rows + others < tokens + 2 * multiple and abs(rows - others) <= 128 + multiple
        documents = [{document for document, *_ in pieces} for pieces in (here, there)]
        cut += len(documents[0] & documents[1])
    assert cut > 0 and sum(sent for *_, sent in answers) > 0


def test_a_process_by_itself(one):
    given = dict(rows=2)
    (want,), ((found, *_, sent),) = one.run(alone, given), one.run(dealt, given, None)
    assert compared(found, want)[0] <= 1 and sent == 0


def resumed(folder, at_once):
    """The losses of four steps, and those of a run that goes on from the checkpoint of the second one."""
    def config():
        made = distca.torchtitan.use(config_of(steps=4, ranks=2), at_once)
        made.checkpoint = CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False, keep_latest_k=0)
        return made

    found = [titan.trained(config(), folder)[0][0]]
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(f"{folder}/checkpoint/step-4")
    dist.barrier()
    return *found, titan.trained(config(), folder)[0][0]


@pytest.mark.parametrize("at_once", [None, 1])
def test_a_run_that_is_resumed_gets_the_batches_of_one_that_was_not_stopped(two, tmp_path, at_once):
    for whole, rest in two.run(resumed, tmp_path, at_once):
        assert len(whole) == 4 and rest == whole[2:]


def validated(is_ours):
    """The loss of a validation behind a step of training."""
    config = config_of(rows=1 if is_ours else 2, ranks=2 if is_ours else 1, steps=1)
    config.validator = Validator.Config(enable=True, freq=1, steps=1, dataloader=titan.Loader.Config())
    found = []

    def look(trainer):
        trainer.metrics_processor.log_validation = lambda loss, step: found.append(loss)

    titan.trained(distca.torchtitan.use(config) if is_ours else titan.with_sdpa(config), look=look)
    return found


def test_validation(one, two):
    (want,), = one.run(validated, False)
    for found, in two.run(validated, True):
        assert abs(found - want) <= BOUND["loss"] * want


def ended():
    """What is said where the loader of a rank ends before the other's."""
    config = config_of(steps=3, ranks=2)
    config.dataloader.steps = 1 + dist.get_rank()
    try:
        titan.trained(distca.torchtitan.use(config))
    except RuntimeError as error:
        return str(error)


def test_a_loader_that_ends_early_is_named(two):
    for line in two.run(ended):
        assert line.startswith("the loader of rank 0 ended after 1 batches, that of rank 1 goes on: all ranks have equally many")


def refusal(call):
    with pytest.raises(ValueError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


CUT = " = 2 is not served: documents are cut over the data-parallel ranks, set it to 1"
SETTINGS = {  # what is set -> (to what, how the line goes on behind it)
    "parallelism.pipeline_parallel_degree": (2, CUT),
    "parallelism.tensor_parallel_degree": (2, CUT),
    "parallelism.context_parallel_degree": (2, CUT),
    "parallelism.expert_parallel_degree": (2, CUT),
    "parallelism.spmd_backend": ("full_dtensor", " = 'full_dtensor': ranks have unequal numbers of tokens"),
    "debug.spmd_typechecking": (True, ": attention has no types of spmd_types, set it to False"),
    "compile.components": (["model", "loss"], " has 'model': TorchTitan compiles layers without breaks"),
    "training.disable_cuda_graphs": (False, " = False: attention waits for other ranks on the host"),
    "comm.mode": ("fake_backend", " = 'fake_backend': the ranks of 'default' are served"),
    "loss": (MSELoss.Config(), " is of type MSELoss.Config: CrossEntropyLoss, alone or within ChunkedLossWrapper"),
    "loss.loss_fn": (MSELoss.Config(), " is of type MSELoss.Config: CrossEntropyLoss"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_trainer_may_not_be_asked(name):
    """They are refused before a process group is there."""
    value, line = SETTINGS[name]
    config = distca.torchtitan.use(titan.config_of(chunks=4))
    config.compile.enable, config.compile.components = True, ["loss"]  # which is served
    distca.torchtitan._check_config(config)
    *parts, last = name.split(".")
    setattr(getattr(config, parts[0]) if parts else config, last, value)
    assert refusal(config.build).startswith(name.removesuffix(".loss_fn") + line)


class OwnMasks(Llama3Model):
    @dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        pass

    def get_attention_masks(self, positions):
        """None that is called."""


class OwnForward(Llama3Model):
    @dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        pass

    def forward(self, tokens):
        """None that is called."""


def changed(kind=Llama3Model, **of_attention):
    config = titan.config_of()
    config.model_spec.model = derive(config.model_spec.model, kind.Config)
    layer = config.model_spec.model.layers[1]
    layer.attention = dataclasses.replace(layer.attention, **of_attention)
    return config


def another_attention():
    config = changed()
    config.model_spec.model.layers[1].attention = BaseAttention.Config(n_heads=2, inner_attention=VarlenAttention.Config())
    return config


def experts():
    config = changed()
    config.model_spec.model.layers[1].moe = object()
    return config


MODELS = {
    "a forward": (lambda: changed(OwnForward),
                  "OwnForward has a forward of its own, which may mix tokens: models with Decoder's are served"),
    "masks": (lambda: changed(OwnMasks),
              "OwnMasks makes masks of its own for FlexAttention: those of documents are served, or attn_backend='varlen'"),
    "attention": (another_attention, "attention of layer 1 of Llama3Model is no GQAttention, which is what is served"),
    "inner attention": (lambda: changed(inner_attention=ScaledDotProductAttention.Config()),
                        "attention of layer 1 of Llama3Model is of kind ScaledDotProductAttention.Config: attn_backend='flex' or "
                        "'varlen'"),
    "window": (lambda: changed(inner_attention=VarlenAttention.Config(window_size=(-1, -1))),
               "window_size = (-1, -1) of layer 1: causal attention is served, (W, 0) or (-1, 0)"),
    "experts": (experts, "layer 1 of Llama3Model has a mixture of experts, whose balance counts a rank's rows: not served"),
    "a trainer": (lambda: distca.torchtitan.use(titan.config_of()),
                  "config is of type Trainer.Config: torchtitan.trainer.Trainer.Config, unchanged"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_may_not_have(name):
    make, line = MODELS[name]
    assert refusal(lambda: distca.torchtitan.use(make())) == line


def test_masks_of_ones_own_do_not_count_without_flex_attention():
    config = changed(OwnMasks)
    for layer in config.model_spec.model.layers:
        layer.attention = dataclasses.replace(layer.attention, inner_attention=VarlenAttention.Config(window_size=(7, 0)))
    made = distca.torchtitan.use(config)
    assert [layer.attention.inner_attention.window_size for layer in made.model_spec.model.layers] == [(7, 0)] * 2


def test_the_given_configuration_stays_as_it_is():
    config = titan.config_of()
    config.training.disable_cuda_graphs = False
    before = config.to_dict()
    made = distca.torchtitan.use(config, at_once=1)
    assert config.to_dict() == before and made.training.disable_cuda_graphs and made.at_once == 1
    numbers = [layer.attention.inner_attention.layer for layer in made.model_spec.model.layers]
    assert numbers == [0, 1] and isinstance(made, stock.Trainer.Config)


BATCHES = {
    "an item": (dict(pixel_values=None), "its batches have input, pixel_values, positions: input and positions are served"),
    "a row": (dict(positions=torch.tensor([[3, 4, 0]])), "positions of a document do not ascend by one from 0, from the"),
    "a gap": (dict(positions=torch.tensor([[0, 2, 0]])), "positions of a document do not ascend by one from 0, from the"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_what_a_loader_may_not_give(name):
    given, line = BATCHES[name]
    inputs = {"input": torch.zeros(1, 3), "positions": torch.tensor([[0, 1, 0]]), **given}
    assert refusal(lambda: distca.torchtitan._items(inputs, inputs["input"])).startswith(line)


def test_attention_sinks_are_refused():
    core = distca.torchtitan.Attention.Config(layer=0).build()
    assert refusal(lambda: core(*[torch.zeros(1, 3, 2, 8)] * 3, attention_masks=None, out_transform=lambda o, lse: o)).startswith(
        "out_transform (attention sinks) is not served")


def test_attention_of_whole_documents():
    core = distca.torchtitan.Attention.Config(layer=0, window_size=(2, 0)).build()
    q, k, v = (torch.randn(2, 5, heads, 8, dtype=torch.float64) for heads in (4, 2, 2))
    masks = create_varlen_metadata_for_document(torch.tensor([[0, 1, 2, 3, 0], [0, 1, 0, 1, 2]]))
    want = sdpa(*(x.flatten(0, 1) for x in (q, k, v)), cu_seqlens_of([4, 1, 2, 3]), 2, 0.3).unflatten(0, (2, 5))
    assert titan.distance(core(q, k, v, attention_masks=masks, scale=0.3, enable_gqa=True), want) < 1e-12


def test_the_example_adds_three_lines_and_the_command_line_reads_it(monkeypatch):
    folder = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
    monkeypatch.syspath_prepend(str(folder))
    words = "--module torchtitan_registry --config balanced --training.steps 7 --at-once 1"
    config = ConfigManager().parse_args(words.split())
    assert type(config) is distca.torchtitan.Trainer.Config and (config.training.steps, config.at_once) == (7, 1)
    distca.torchtitan._check_config(config)
    lines = (folder / "torchtitan_registry.py").read_text().split('"""')[2].splitlines()
    added = [line for line in lines if line and "torchtitan.models" not in line]  # beside what is imported of TorchTitan
    assert len(added) <= 3


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr("torchtitan.__version__", "0.2.2")
    with pytest.raises(ImportError, match="needs TorchTitan 0.3 or newer, but 0.2.2 is installed: 0.2 has no torchtitan.trainer"):
        _versions.require("torchtitan")
    monkeypatch.setitem(sys.modules, "torchtitan", None)
    with pytest.raises(ImportError, match="TorchTitan is not installed: pip install torchtitan"):
        _versions.require("torchtitan")
