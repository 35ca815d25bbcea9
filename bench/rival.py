#!/usr/bin/env python3
"""Plain PyTorch, which benchmarks compare DistCA with: rival.py ddp|transformers|gpu ARGUMENTS, a JSON object.

ddp: one rank of DistributedDataParallel over Gloo, for bench/training; scaled_dot_product_attention a document. Arguments:
  rank, size, core; store, a file through which the ranks meet; timeout, the seconds that one wait may last; folder.
    {"batch": {"nano_batches": [{"lengths", "ids", "targets"}], "num_targets"}}  -> {}
    {"run": null}  -> {"begin_s", "computed_s", "end_s", "processor_s", "loss_sum", "gradient_norm"}, of the monotonic clock
transformers: a Llama of the package transformers on the same attention, for bench/transformers. Arguments: threads.
  Its first answer, {"transformers", "torch"}, comes once everything is imported and has run on a tiny model.
    {"load": FOLDER}  -> {"parameters"}
    {"step": {"nano_batches": [{"lengths", "ids", "targets", "positions"}], "num_targets"}}
      -> {"elapsed", "step", "mean_loss", "gradient_norm", and the parts of the step as bench/one_worker.h names them},
      in seconds, of the clock that bench/one_worker.h says
gpu: one device, for scripts/gpu_check.sh: variable-length attention of PyTorch's own FlashAttention (on a CPU as ddp), bf16
  weights with fp32 main params. Arguments: device; folder; text, one document, a byte a token; documents, how many of it are a
  step; steps. It reads no command and writes a line a step: loss before the update, and step_s. It recomputes what
  `train.recompute=full` does: all but attention and the head, whose backward follows each part of its rows at once.

A folder has config.json of a LlamaForCausalLM and model.safetensors in fp32. All update by fused AdamW: optimizer, an
argument, has the keys of [optimizer]. On standard input a line a command, on standard output a line an answer, in JSON.
Between commands a rival waits in a read; it ends with its standard input.
"""

import contextlib
import datetime
import itertools
import json
import math
import os
import pathlib
import sys
import time
import types
import warnings

KIND, ARGUMENTS = sys.argv[1], types.SimpleNamespace(**json.loads(sys.argv[2]))
if KIND == "ddp":
    os.sched_setaffinity(0, {ARGUMENTS.core})  # before PyTorch: its threads inherit it
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever else prints does not answer
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

LOSS_ROWS = 4096  # of which gpu has the logits at a time


def answer(values):
    print(json.dumps(values), file=ANSWERS)


def adamw(parameters):
    keys = ARGUMENTS.optimizer
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": keys["weight_decay"]},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=keys["lr"], betas=(keys["beta1"], keys["beta2"]), eps=keys["eps"], fused=True)


def clipped(parameters):
    """Clips the gradients. Their norm before."""
    return nn.utils.clip_grad_norm_(parameters, ARGUMENTS.optimizer["max_grad_norm"])


def by_document(q, k, v, lengths, **more):
    """Causal attention of each document, [1, heads, tokens, dim]: a part for each."""
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)))
    return [F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True, **more) for part in parts]


# --- the Llama of ddp and gpu ------------------------------------------------------------------------------------------


def stored(path):
    """Name -> fp32 tensor of a safetensors file."""
    data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    begin = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
    entries = json.loads(bytes(data[8:begin].tolist()))
    entries.pop("__metadata__", None)
    assert all(entry["dtype"] == "F32" for entry in entries.values()), "weights that are not fp32"
    return {name: data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]].clone().view(torch.float32)
            .reshape(entry["shape"]) for name, entry in entries.items()}


def rotated(x, cosines, sines):
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, dim, inner = model["hidden_size"], model["head_dim"], model["intermediate_size"]
        heads, kv_heads = model["num_attention_heads"] * dim, model["num_key_value_heads"] * dim
        self.dim = dim

        def linear(**sizes):
            return nn.ModuleDict({f"{name}_proj": nn.Linear(*size, bias=False) for name, size in sizes.items()})

        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(hidden, eps=model["rms_norm_eps"]) for _ in range(2))
        self.self_attn = linear(q=(hidden, heads), k=(hidden, kv_heads), v=(hidden, kv_heads), o=(heads, hidden))
        self.mlp = linear(gate=(hidden, inner), up=(hidden, inner), down=(inner, hidden))

    def before(self, x, cosines, sines):
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[f"{one}_proj"](h).view(len(x), -1, self.dim) for one in "qkv")
        return rotated(q, cosines, sines), rotated(k, cosines, sines), v

    def behind(self, x, o):
        x = x + self.self_attn["o_proj"](o.reshape(len(x), -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class Llama(nn.Module):
    """Parameters have Hugging Face's names."""

    def __init__(self, folder):
        super().__init__()
        folder = pathlib.Path(folder)
        model = json.loads((folder / "config.json").read_text())
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(model["vocab_size"], model["hidden_size"]),
            "layers": nn.ModuleList(Layer(model) for _ in range(model["num_hidden_layers"])),
            "norm": nn.RMSNorm(model["hidden_size"], eps=model["rms_norm_eps"])})
        self.lm_head = nn.Linear(model["hidden_size"], model["vocab_size"], bias=False)
        self.half, self.theta = model["head_dim"] // 2, model["rope_theta"]
        self.load_state_dict(stored(folder / "model.safetensors"))

    def rope(self, lengths, device):
        positions = torch.cat([torch.arange(length, dtype=torch.float64, device=device) for length in lengths])
        frequencies = self.theta ** -(torch.arange(self.half, dtype=torch.float64, device=device) / self.half)
        angles = positions.unsqueeze(1) * frequencies
        return [part.float().unsqueeze(1) for part in (angles.cos(), angles.sin())]

    @staticmethod
    def attention(lengths, device):
        """Causal attention of each document, a function of q, k, v [tokens, heads, dim]."""
        if device.type == "cuda":
            # What torch.nn.attention.varlen calls, with fewer key heads than query heads.
            ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
            sizes = (ends, ends, max(lengths), max(lengths))
            return lambda q, k, v: torch.ops.aten._flash_attention_forward(q, k, v, *sizes, 0.0, True, False)[0]
        return lambda *qkv: torch.cat(by_document(*(x.transpose(0, 1).unsqueeze(0) for x in qkv), lengths), 2)[0].transpose(0, 1)

    def hidden(self, ids, lengths, play=lambda part, *inputs: part(*inputs)):
        """What the head reads. `play` calls each part of a layer but attention."""
        rope, attention = self.rope(lengths, ids.device), self.attention(lengths, ids.device)
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            q, k, v = play(layer.before, x, *rope)
            x = play(layer.behind, x, attention(q, k, v))
        return self.model["norm"](x)

    def loss(self, x, targets):
        """Summed over targets."""
        return F.cross_entropy(self.lm_head(x).float(), targets, ignore_index=-100, reduction="sum")

    def forward(self, ids, targets, lengths):
        return self.loss(self.hidden(ids, lengths), targets)


class Ddp:
    def __init__(self):
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{ARGUMENTS.store}", rank=ARGUMENTS.rank, world_size=ARGUMENTS.size,
            timeout=datetime.timedelta(seconds=ARGUMENTS.timeout))
        self.ddp = nn.parallel.DistributedDataParallel(Llama(ARGUMENTS.folder), gradient_as_bucket_view=True)
        self.parameters = list(self.ddp.parameters())
        self.computed_s = 0.0
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.note_time)
        self.optimizer = adamw(self.parameters)

    def note_time(self, _):
        """The last of a step: when this rank's own gradients are complete and only the sum is awaited."""
        self.computed_s = time.monotonic()

    def batch(self, batch):
        # DDP takes the mean over ranks; the loss is a mean over the batch's targets.
        self.scale = ARGUMENTS.size / batch["num_targets"]
        self.nano_batches = [(torch.tensor(n["ids"]), torch.tensor(n["targets"]), n["lengths"]) for n in batch["nano_batches"]]
        return {}

    def run(self, _):
        torch.distributed.barrier()
        begin, processor_begin, loss_sum = time.monotonic(), time.process_time(), 0.0
        self.optimizer.zero_grad()
        for index, nano_batch in enumerate(self.nano_batches):
            last = index + 1 == len(self.nano_batches)
            with contextlib.nullcontext() if last else self.ddp.no_sync():
                loss = self.ddp(*nano_batch)
                (loss * self.scale).backward()
                loss_sum += loss.item()
        norm = clipped(self.parameters)
        self.optimizer.step()
        end = time.monotonic()
        return {"begin_s": begin, "computed_s": self.computed_s, "end_s": end,
                "processor_s": time.process_time() - processor_begin, "loss_sum": loss_sum, "gradient_norm": norm.item()}


# --- gpu ---------------------------------------------------------------------------------------------------------------


def gpu_step(llama, ids, targets, lengths, count):
    """The loss of a forward and backward, a tensor without a graph."""
    x = llama.hidden(ids, lengths, lambda part, *inputs: checkpoint(part, *inputs, use_reentrant=False))
    last, sums = x.detach().requires_grad_(), []
    for rows, some in zip(last.split(LOSS_ROWS), targets.split(LOSS_ROWS)):
        loss = llama.loss(rows, some) / count
        loss.backward()
        sums.append(loss.detach())
    x.backward(last.grad)
    return torch.stack(sums).sum()


def play_gpu():
    torch.set_num_threads(1)
    device = torch.device(ARGUMENTS.device)
    llama = Llama(ARGUMENTS.folder).to(device)
    weights = list(llama.parameters())
    main_params = [weight.detach().clone() for weight in weights]
    llama.to(torch.bfloat16)
    for param in main_params:
        param.grad = torch.empty_like(param)
    optimizer = adamw(main_params)
    document = torch.tensor(list(pathlib.Path(ARGUMENTS.text).read_bytes()))
    count = ARGUMENTS.documents
    targets = torch.cat([document[1:], torch.tensor([-100])])
    batch = [*(x.repeat(count).to(device) for x in (document, targets)), [len(document)] * count, (len(document) - 1) * count]
    for _ in range(ARGUMENTS.steps):
        begin = time.monotonic()
        llama.zero_grad()
        loss = gpu_step(llama, *batch)
        with torch.no_grad():
            torch._foreach_copy_([param.grad for param in main_params], [weight.grad for weight in weights])
            clipped(main_params)
            optimizer.step()
            torch._foreach_copy_(weights, main_params)
        value = loss.item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert math.isfinite(value), "the loss is not finite"
        answer({"loss": value, "step_s": time.monotonic() - begin})


# --- transformers ------------------------------------------------------------------------------------------------------


class Clock:
    """Divides a step into parts: what ends at a mark began at the one before."""

    def __init__(self):
        self.now = time.process_time if ARGUMENTS.threads == 1 else time.monotonic

    def begin(self):
        self.parts, self.last = dict.fromkeys(("embed", "pre_attention", "attention forward", "attention backward",
                                               "post_attention", "loss", "optimizer"), 0.0), self.now()

    def mark(self, part):
        now = self.now()
        self.parts[part] += now - self.last
        self.last = now


class Documents(torch.autograd.Function):
    """Causal attention of each document, q, k, v [1, heads, T, dim]. One function, so that the clock has all of it: the
    division by documents, PyTorch's operator, and putting the parts together, forward and backward."""

    @staticmethod
    def forward(context, q, k, v, lengths, scale, clock):
        clock.mark("pre_attention")
        context.inputs, context.clock = [t.detach().requires_grad_() for t in (q, k, v)], clock
        with torch.enable_grad():
            parts = by_document(*context.inputs, lengths, scale=scale)
            context.output = torch.cat([part.transpose(1, 2) for part in parts], dim=1)
        clock.mark("attention forward")
        return context.output.detach()

    @staticmethod
    def backward(context, d_output):
        context.clock.mark("post_attention")
        gradients = torch.autograd.grad(context.output, context.inputs, d_output)
        del context.inputs, context.output
        context.clock.mark("attention backward")
        return *gradients, None, None, None


class Transformers:
    def __init__(self):
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        try:
            import transformers
        except ImportError as error:
            sys.exit(f"bench/rival.py: error: {error}; install it: {sys.executable} -m pip install transformers")
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(ARGUMENTS.threads)
        self.llama, self.clock = transformers.LlamaForCausalLM, Clock()
        transformers.AttentionInterface.register("documents", self.attention)
        # A step of a tiny model: what PyTorch and transformers load at first use is no part of a model's memory.
        self.take(self.llama(transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, attn_implementation="documents")))
        nano_batch = {"lengths": [2], "ids": [1, 2], "targets": [2, -100], "positions": [0, 1]}
        self.step({"nano_batches": [nano_batch], "num_targets": 1})
        answer({"transformers": transformers.__version__, "torch": torch.__version__})

    def attention(self, module, q, k, v, attention_mask, scaling, document_lengths, **_):
        assert attention_mask is None
        return Documents.apply(q, k, v, document_lengths, scaling, self.clock), None

    def take(self, model):
        self.model = model.train()
        self.mark_layers(model.model)
        self.parameters = list(model.parameters())
        self.optimizer = adamw(self.parameters)

    def mark_layers(self, llama):
        """Marks where layers begin and end, forward and, by the gradients of what lies between them, backward."""
        mark = self.clock.mark

        def after(part, backward_part):
            def marks(module, inputs, x):
                mark(part)
                x.register_hook(lambda _: mark(backward_part))
            return marks

        llama.embed_tokens.register_forward_hook(after("embed", "pre_attention"))
        llama.rotary_emb.register_forward_hook(lambda *_: mark("embed"))
        for layer in llama.layers:
            last = layer is llama.layers[-1]
            layer.register_forward_hook(after("post_attention", "loss" if last else "pre_attention"))

    def load(self, folder):
        self.take(self.llama.from_pretrained(folder, dtype=torch.float32, attn_implementation="documents"))
        return {"parameters": sum(parameter.numel() for parameter in self.parameters)}

    def step(self, batch):
        inputs = [{"input_ids": torch.tensor([n["ids"]]), "position_ids": torch.tensor([n["positions"]]),
                   "targets": torch.tensor([n["targets"]]), "document_lengths": n["lengths"]}
                  for n in batch["nano_batches"]]
        loss, begin = 0.0, time.monotonic()
        self.clock.begin()
        self.optimizer.zero_grad()
        self.clock.mark("optimizer")
        for nano_batch in inputs:
            targets = nano_batch.pop("targets")
            part = self.model(**nano_batch, labels=targets, shift_labels=targets, use_cache=False,
                              num_items_in_batch=batch["num_targets"]).loss
            part.backward()
            loss += part.item()
            self.clock.mark("embed")
        norm = clipped(self.parameters).item()
        self.optimizer.step()
        self.clock.mark("optimizer")
        parts = self.clock.parts
        return parts | {"elapsed": time.monotonic() - begin, "step": sum(parts.values()), "mean_loss": loss, "gradient_norm": norm}


def main():
    if KIND == "gpu":
        return play_gpu()
    rival = {"ddp": Ddp, "transformers": Transformers}[KIND]()
    for line in sys.stdin:
        (command, argument), = json.loads(line).items()
        answer(getattr(rival, command)(argument))
    if KIND == "ddp":
        torch.distributed.destroy_process_group()


main()
