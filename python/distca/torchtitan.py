"""distca.attention in TorchTitan's Trainer, whose steps are dealt over the data-parallel ranks.

    import distca.torchtitan
    def mine(): return distca.torchtitan.use(llama3_8b())  # in a module of yours: torchtitan.train --module M --config mine

Documents. They begin where `positions` of TorchTitan's loaders are 0. A rank has pieces of any documents of a step, equally
many tokens as the others to within 128, and a document may be as long as a row (training.seq_len).

A step is what TorchTitan's is: as many rows, the same gradient, whatever lies where. `at_once` says how many ranks' batches
are dealt together. With 1, each batch is spread over all ranks, which take turns: as many times more passes make a step.

A rank's rows are filled up, with a document of its own without targets, to what ChunkedLossWrapper can cut evenly.

Resuming. What a checkpoint says of the loader is where it was when the last batch of the step came from it, whatever was
read ahead since. Gradients off (Validator). Each rank computes whole documents alone and sends nothing.

Errors. ValueError, in one line, names what is not served: of the model when `use` is called, of settings, which the command
line may change, before the Trainer is made. What a loader gives is refused on all ranks (RuntimeError). Threads. As `distca.attention`.
"""

import copy
import functools
import math
from collections import deque
from dataclasses import dataclass, replace

from distca._versions import require

require("torchtitan")

import torch  # noqa: E402
from torchtitan import trainer as stock  # noqa: E402
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: E402
from torchtitan.config.override import derive  # noqa: E402
from torchtitan.models.common.attention import FlexAttention, GQAttention, VarlenAttention  # noqa: E402
from torchtitan.models.common.decoder import Decoder  # noqa: E402

from distca._attention import attention  # noqa: E402
from distca._deal import DEALT, IGNORED, Dealer, Dealt  # noqa: E402
from distca._served import refuse  # noqa: E402
from distca._shard import steps  # noqa: E402
from distca.plan import Shape  # noqa: E402

__all__ = ["use", "Attention", "Trainer"]

_KINDS = ("pipeline", "tensor", "context", "expert")


def use(config, at_once: int | None = None):
    """A copy of a configuration (`torchtitan.trainer.Trainer.Config`) whose Trainer and attention are DistCA's.

    The given one stays as it is. CUDA graphs are off in the copy (training.disable_cuda_graphs), because attention waits for
    other ranks on the host.

    at_once: how many ranks' batches are dealt together; None for all. It divides the number of ranks.
    Raises ValueError in one line for a model that is not served.
    """
    if type(config) is not stock.Trainer.Config:
        raise ValueError(f"config is of type {type(config).__qualname__}: torchtitan.trainer.Trainer.Config, unchanged")
    model = copy.deepcopy(config.model_spec.model)
    _check_model(model)
    for number, layer in enumerate(model.layers):
        inner = derive(layer.attention.inner_attention, Attention.Config, layer=number)
        layer.attention = replace(layer.attention, inner_attention=inner)
    made = derive(copy.deepcopy(config), Trainer.Config, at_once=at_once, model_spec=replace(config.model_spec, model=model))
    made.training.disable_cuda_graphs = True
    return made


def _check_model(model):
    kind = type(model)._owner
    name = getattr(kind, "__name__", type(model).__qualname__)
    if not isinstance(model, Decoder.Config) or kind.forward is not Decoder.forward:
        raise ValueError(f"{name} has a forward of its own, which may mix tokens: models with Decoder's are served")
    for number, layer in enumerate(model.layers):
        inner = getattr(layer.attention, "inner_attention", None)
        window = getattr(inner, "window_size", (-1, 0))
        refuse(
            (not isinstance(layer.attention, GQAttention.Config),
             f"attention of layer {number} of {name} is no GQAttention, which is what is served"),
            (layer.moe is not None, f"layer {number} of {name} has a mixture of experts, whose balance counts a rank's rows: not "
                                    "served"),
            (type(inner) is FlexAttention.Config and kind.get_attention_masks is not Decoder.get_attention_masks,
             f"{name} makes masks of its own for FlexAttention: those of documents are served, or attn_backend='varlen'"),
            (type(inner) not in (FlexAttention.Config, VarlenAttention.Config),
             f"attention of layer {number} of {name} is of kind {type(inner).__qualname__}: attn_backend='flex' or 'varlen'"),
            (window[1] != 0, f"window_size = {tuple(window)} of layer {number}: causal attention is served, (W, 0) or (-1, 0)"),
        )


def _check_config(config):
    cut, compiled, loss = config.parallelism, config.compile, config.loss
    of_chunk = loss.loss_fn if type(loss) is ChunkedLossWrapper.Config else loss
    degrees = {f"{kind}_parallel_degree": getattr(cut, f"{kind}_parallel_degree") for kind in _KINDS}
    refuse(
        *((degree > 1, f"parallelism.{name} = {degree} is not served: documents are cut over the data-parallel ranks, set it to "
                       "1") for name, degree in degrees.items()),
        (cut.spmd_backend == "full_dtensor", "parallelism.spmd_backend = 'full_dtensor': ranks have unequal numbers of tokens, "
                                             "'spmd_types' or 'partial_dtensor'"),
        (config.debug.spmd_typechecking, "debug.spmd_typechecking: attention has no types of spmd_types, set it to False"),
        (compiled.enable and "model" in compiled.components, "compile.components has 'model': TorchTitan compiles layers without "
                                                             "breaks, and attention is one; set it to ['loss']"),
        (not config.training.disable_cuda_graphs, "training.disable_cuda_graphs = False: attention waits for other ranks on the "
                                                  "host, set it to True"),
        (config.comm.mode != "default", f"comm.mode = {config.comm.mode!r}: the ranks of 'default' are served"),
        (type(of_chunk) is not CrossEntropyLoss.Config,
         f"loss is of type {type(of_chunk).__qualname__}: CrossEntropyLoss, alone or within ChunkedLossWrapper"),
    )


class Attention(VarlenAttention):
    """`distca.attention` in place of TorchTitan's inner attention. It has no parameters."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        layer: int
        """The number of the layer."""

    def __init__(self, config: Config):
        super(VarlenAttention, self).__init__()  # which would choose a kernel
        self.window_size, self.layer = config.window_size, config.layer

    def forward(self, q_BLNH, k_BLNH, v_BLNH, *, attention_masks, scale=None, out_transform=None, **_):
        """O [rows, tokens, heads, head_dim] in the dtype of Q, which are computed in that of V.

        q_BLNH, k_BLNH, v_BLNH: [rows, tokens, heads, head_dim]; K and V may have fewer heads.
        attention_masks: a step that was dealt, or TorchTitan's VarlenMetadata of whole documents.
        """
        if out_transform is not None:
            raise ValueError("out_transform (attention sinks) is not served: log-sum-exp has no gradient")
        places = attention_masks.pieces[0] if isinstance(attention_masks, Dealt) else attention_masks.cu_seq_q
        q, k, v = (x.flatten(0, 1).to(v_BLNH.dtype) for x in (q_BLNH, k_BLNH, v_BLNH))
        o = attention(q, k, v, places, places, softmax_scale=scale, window_size=self.window_size, layer=self.layer)
        return o.unflatten(0, q_BLNH.shape[:2]).to(q_BLNH.dtype)


_ROWS = 32  # quantized linears (Float8, MXFP8) take rows in multiples of it


class _Filled(Dealer):
    """Deals steps and fills up each rank's rows to a multiple, at least one."""

    def __init__(self, shape, at_once, multiple):
        super().__init__(None, shape, at_once, 1, "sum")
        self.multiple = multiple

    def dealt(self, columns, said, first):
        batch = super().dealt(columns, said, first)
        rows = batch["input_ids"].shape[1]
        missing = -rows % self.multiple if rows else self.multiple
        batch[DEALT].filling = missing
        room = torch.arange(missing, device="cpu")[None]
        for name, value in (("input_ids", 0), ("position_ids", room), ("shift_labels", IGNORED)):
            batch[name] = torch.cat([batch[name], torch.zeros_like(room) + value], 1)
        if missing:
            pieces = batch[DEALT].pieces
            pieces[0] = torch.cat([pieces[0], torch.tensor([[-1 - self.rank, 0, missing]], device="cpu")])
        return batch


class Trainer(stock.Trainer):
    """TorchTitan's Trainer; a rank's batches are its shares of what the loaders of all ranks give."""

    @dataclass(kw_only=True, slots=True)
    class Config(stock.Trainer.Config):
        at_once: int | None = None
        """How many ranks' batches are dealt together; None for all of them."""

    def __init__(self, config: Config):
        _check_config(config)
        super().__init__(config)
        of = config.model_spec.model.layers[0].attention
        shape = Shape(of.n_heads, of.n_kv_heads or of.n_heads, of.head_dim or of.dim // of.n_heads)
        self.dealer = _Filled(shape, config.at_once, math.lcm(getattr(config.loss, "num_chunks", 1), _ROWS))
        self.gradient_accumulation_steps *= self.dealer.ranks // self.dealer.at_once

    def batch_generator(self, data_iterable):
        return super().batch_generator(self._dealt(data_iterable))

    def _dealt(self, loader):
        """(inputs, labels) of this rank, as loaders of TorchTitan yield them."""
        state_of, states = loader.state_dict, deque()  # the loader's, behind each batch that came from it

        def items():
            for inputs, labels in loader:
                if self.config.checkpoint.enable:
                    states.append(state_of())
                yield _items(inputs, labels)

        for i, batch in enumerate(steps(self.dealer, items())):
            if i % (self.dealer.ranks // self.dealer.at_once) == 0 and states:
                loader.state_dict = functools.partial(dict, states.popleft())
            self.metrics_processor.ntokens_since_last_log -= batch[DEALT].filling  # all rows are counted there
            yield {"input": batch["input_ids"], "positions": batch["position_ids"], DEALT: batch[DEALT]}, batch["shift_labels"]

    def post_dataloading_process(self, input_dict, labels):
        dealt, positions = input_dict.pop(DEALT), input_dict.pop("positions")
        inputs, labels, kwargs = super().post_dataloading_process(input_dict, labels)
        self.ntokens_seen -= dealt.filling
        return inputs, labels, {**kwargs, "positions": positions, "attention_masks": dealt}


def _items(inputs, labels) -> dict:
    """A batch of TorchTitan's as `distca.shard` takes them. Raises ValueError."""
    positions = inputs.get("positions")
    if set(inputs) != {"input", "positions"}:
        raise ValueError(f"its batches have {', '.join(sorted(inputs))}: input and positions are served")
    if bool((positions[:, 0] != 0).any()) or bool(((positions.diff(dim=1) != 1) & (positions[:, 1:] != 0)).any()):
        raise ValueError("positions of a document do not ascend by one from 0, from the beginning of a row on")
    return {"input_ids": inputs["input"], "position_ids": positions, "shift_labels": labels}
