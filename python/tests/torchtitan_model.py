"""TorchTitan's Trainer on CPUs: what stands in for a device, for data and for its CUDA kernel of attention.

TorchTitan looks for a device when it is imported and finds CUDA's, whether or not there is one. `Device` stands in for
that, and for nothing else: the Trainer, its model, its FSDP2, its checkpoints, its optimizer and its loss are its own.
"""

import copy
import dataclasses
import gc
import os
import time
import types
from dataclasses import dataclass

import torch
import torch._utils

Device = types.SimpleNamespace(  # as torch.cuda is, of a machine without one
    **{name: getattr(torch.cpu, name) for name in ("device_count", "set_device", "synchronize")}, current_device=lambda: 0,
    get_device_name=lambda *_: "CPU", get_device_properties=lambda *_: types.SimpleNamespace(total_memory=2**30),
    memory_stats=lambda *_: {}, reset_peak_memory_stats=lambda *_: None, empty_cache=lambda: None)
_found = torch._utils._get_available_device_type, torch._utils._get_device_module
torch._utils._get_available_device_type, torch._utils._get_device_module = lambda: "cpu", lambda *_: Device
try:
    import torchtitan.tools.utils  # noqa: F401
finally:
    torch._utils._get_available_device_type, torch._utils._get_device_module = _found

import torchtitan.trainer as stock  # noqa: E402
from attention_model import distance, sdpa  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: E402
from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: E402
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import TORCH_DTYPE_MAP  # noqa: E402
from torchtitan.distributed import fsdp  # noqa: E402
from torchtitan.models.common.attention import VarlenAttention  # noqa: E402
from torchtitan.models.llama3 import config_registry as llama3  # noqa: E402
from torchtitan.models.qwen3 import config_registry as qwen3  # noqa: E402

__all__ = ["distance"]
stock.dist_utils.set_pg_timeouts = lambda **_: None  # its barrier names a device, which Gloo refuses
sums_of = fsdp.disable_fsdp_gradient_division
fsdp.disable_fsdp_gradient_division = lambda model: (sums_of(model), summed(model))  # NCCL's way to sum is none of Gloo's
stock.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)  # rank 0 would sleep at the end
VOCABULARY = 2048  # of TorchTitan's models for debugging, at least
WIDTH = 128  # of what is within a feed-forward layer
TOKENS = 192  # of a row
ROWS = ([192], [70, 1, 121], [5, 187], [64, 128], [192], [33, 33, 126])  # documents of rows, which come in turns

# TorchTitan knows no float64, in which rounding hides nothing: what asks for float32 gets it.
TORCH_DTYPE_MAP["float32"] = torch.float64


def summed(model):
    """Has FSDP2 reduce gradients by a sum, where it would by a product of theirs with 1."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def rows_of(first, count):
    """(input, positions, labels), each [count, TOKENS], of rows that are numbered over all steps and ranks."""
    generator, found = torch.Generator(), []
    for row in range(first, first + count):
        lengths = ROWS[row % len(ROWS)]
        tokens = torch.randint(VOCABULARY, (TOKENS + 1,), generator=generator.manual_seed(row))
        positions = torch.cat([torch.arange(length) for length in lengths])
        has_target = torch.rand(TOKENS, generator=generator) < 0.8
        found.append((tokens[:-1], positions, tokens[1:].masked_fill(~has_target, -100)))
    return [torch.stack(one) for one in zip(*found)]


class Loader(BaseDataLoader):
    """Batches of rows. With `steps`, it ends behind as many."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        steps: int = 10**6
        extra: str = ""  # the name of an item that a batch has besides
        infinite: bool = True

    def __init__(self, config, *, dp_world_size, dp_rank, local_batch_size, **_):
        self.config, self.rank, self.ranks, self.rows, self.at = config, dp_rank, dp_world_size, local_batch_size, 0

    def __iter__(self):
        while self.at < self.config.steps:
            tokens, positions, labels = rows_of((self.at * self.ranks + self.rank) * self.rows, self.rows)
            self.at += 1
            extra = {self.config.extra: labels} if self.config.extra else {}
            yield {"input": tokens, "positions": positions, **extra}, labels

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Tokenizer(BaseTokenizer):
    """None is needed, and TorchTitan makes one."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        super().__init__()

    encode = decode = get_vocab_size = None


class Sdpa(VarlenAttention):
    """In place of the kernel, which knows CUDA alone: PyTorch's own attention, a document at a time."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks, scale=None, **_):
        rows = [x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH)]
        return sdpa(*rows, attention_masks.cu_seq_q, self.window_size[0], scale).view(q_BLNH.shape)


def config_of(model="llama3", window=None, rows=1, accumulated=1, ranks=1, steps=2, chunks=0, checkpointing=None, **parallelism):
    """TorchTitan's own configuration of a small model for debugging, which computes in float32 on this data.

    window: None leaves FlexAttention and its masks of documents, as TorchTitan has them. rows: of a batch of a rank.
    accumulated: batches of a rank in a step. chunks: of the loss; 0 is one that has none.
    """
    config = {"llama3": llama3.llama3_debugmodel, "qwen3": qwen3.qwen3_debugmodel}[model]()
    of_model = config.model_spec.model
    of_model.layers = of_model.layers[:2]
    for layer in of_model.layers:
        feed = layer.feed_forward
        feed.w1.out_features = feed.w3.out_features = feed.w2.in_features = WIDTH
        if window:
            layer.attention = dataclasses.replace(layer.attention, inner_attention=VarlenAttention.Config(window_size=window))
    config.loss = CrossEntropyLoss.Config(global_vocab_size=of_model.vocab_size)
    if chunks:
        config.loss = ChunkedLossWrapper.Config(num_chunks=chunks, loss_fn=config.loss)
    config.training = dataclasses.replace(
        config.training, local_batch_size=rows, global_batch_size=rows * accumulated * ranks, seq_len=TOKENS, steps=steps,
        mixed_precision_param="float32", disable_cuda_graphs=True)
    # AdamW divides by the size of a gradient: rounding of small ones would show.
    config.optimizer = OptimizersContainer.Config(implementation="for-loop", param_groups=[ParamGroupConfig(
        pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-3, "eps": 1e-3})])
    config.dataloader, config.tokenizer = Loader.Config(), Tokenizer.Config()
    config.checkpoint = CheckpointManager.Config(enable=False)
    config.activation_checkpoint = checkpointing
    # FSDP2 takes parameters of spmd_types, TorchTitan's default, from PyTorch 2.14 on.
    backend = "spmd_types" if torch.torch_version.TorchVersion(torch.__version__) >= (2, 14) else "partial_dtensor"
    config.parallelism = dataclasses.replace(config.parallelism, spmd_backend=backend, **parallelism)
    config.debug.seed = 5
    return config


def with_sdpa(config):
    """The same for one process, of which DistCA is no part."""
    config = copy.deepcopy(config)
    for layer in config.model_spec.model.layers:
        window = getattr(layer.attention.inner_attention, "window_size", (-1, 0))
        layer.attention = dataclasses.replace(layer.attention, inner_attention=Sdpa.Config(window_size=window))
    return config


def built(config):
    """Its Trainer, in this process, with weights that depend on nothing: DTensor's own depend on how they are cut."""
    os.environ.setdefault("LOCAL_RANK", "0")
    _clear_sharding_prop_cache()  # else PyTorch 2.15 finds the mesh of a Trainer before
    try:
        trainer = config.build()
    finally:
        gc.enable()  # which TorchTitan turns off
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in trainer.model_parts[0].named_parameters():
            weights = torch.randn(parameter.shape, generator=generator) * (0.02 if parameter.dim() > 1 else 0.1)
            weights += parameter.dim() == 1  # those of norms
            parameter.copy_(distribute_tensor(weights, parameter.device_mesh, parameter.placements))
    return trainer


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(config, folder=None, look=lambda trainer: None):
    """([losses], [norms of gradients], {name: gradient} of the last step, {name: parameter}) of a run, what `look` returned."""
    if folder:
        config.dump_folder = str(folder)
    trainer = built(config)
    looked, losses, norms, gradients = look(trainer), [], [], {}
    assert isinstance(trainer, stock.Trainer)
    model, step = trainer.model_parts[0], trainer.optimizers.step

    def optimizer_step(*given, **named):
        gradients.update({name: full(parameter.grad) for name, parameter in model.named_parameters()})
        return step(*given, **named)

    def log(number, average, largest, norm, extra_metrics=None):
        losses.append(average)
        norms.append(norm)

    trainer.optimizers.step, trainer.metrics_processor.log = optimizer_step, log
    trainer.metrics_processor.should_log = lambda number: True
    try:
        trainer.train()
    finally:
        trainer.close()
    return (losses, norms, gradients, {name: full(parameter) for name, parameter in model.named_parameters()}), looked
