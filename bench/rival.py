#!/usr/bin/env python3
"""Plain PyTorch, which benchmarks compare DistCA with: rival.py ddp|gpu ARGUMENTS, a JSON object.

ddp: one rank of DistributedDataParallel over Gloo, for bench/training; scaled_dot_product_attention a document. Arguments:
  rank, size, core; store, a file through which the ranks meet; timeout, the seconds that one wait may last; folder.
    {"batch": {"nano_batches": [{"lengths", "ids", "targets"}], "num_targets"}}  -> {}
    {"run": null}  -> {"begin_s", "computed_s", "end_s", "processor_s", "loss_sum", "gradient_norm"}, of the monotonic clock
gpu: one device, for scripts/gpu_check.sh: variable-length attention of PyTorch's own FlashAttention, or of FlashAttention 4
  (on a CPU as ddp), bf16 weights with fp32 main params. Arguments: device; folder; text, one document, a
  byte a token; documents, how many of it are a step; steps; flash4. It reads no command and writes a line a step: loss before the
  update, and step_s. It recomputes what `train.recompute=full` does: all but attention and the head, whose backward follows
  each part of its rows at once.

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
import torch.nn.attention  # noqa: E402
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


def by_document(q, k, v, lengths):
    """Causal attention of each document, [1, heads, tokens, dim]: a part for each."""
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)))
    return [F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True) for part in parts]


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


def take_flash4():
    """FlashAttention 4 in place of ATen's kernel behind PyTorch's own operator, where it is installed."""
    try:
        nn.attention.activate_flash_attention_impl("FA4")
    except (AttributeError, ImportError, RuntimeError, ValueError) as why:
        sys.exit(f"plain PyTorch has no FlashAttention 4 here: {why}")


def play_gpu():
    torch.set_num_threads(1)
    device = torch.device(ARGUMENTS.device)
    if ARGUMENTS.flash4:
        take_flash4()
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


def main():
    if KIND == "gpu":
        return play_gpu()
    assert KIND == "ddp", f"{KIND}: ddp or gpu"
    rival = Ddp()
    for line in sys.stdin:
        (command, argument), = json.loads(line).items()
        answer(getattr(rival, command)(argument))
    torch.distributed.destroy_process_group()


main()
