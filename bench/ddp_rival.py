#!/usr/bin/env python3
"""One rank of PyTorch DDP over Gloo, the rival of bench/training: the same Llama, sdpa a document.

Started by bench/training, twice, with a JSON object: rank, size, core; store, a file through which the ranks meet;
timeout, the seconds that one wait may last; model, the config.json of a LlamaForCausalLM; weights, a safetensors file,
fp32; optimizer, keys of [optimizer]. Between steps it waits in a read. On standard input a line a command, on standard
output a line an answer, both JSON:
  {"batch": {"nano_batches": [{"lengths", "ids", "targets"}], "num_targets"}}  -> {"ready": true}
  {"run": true}  -> {"begin_s", "computed_s", "end_s", "processor_s", "loss_sum", "gradient_norm"}
Times are of the machine's monotonic clock. Ends with its standard input.
"""

import json
import os
import sys
import types

ARGUMENTS = types.SimpleNamespace(**json.loads(sys.argv[1]))
os.sched_setaffinity(0, {ARGUMENTS.core})  # before PyTorch: its threads inherit it
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever else prints does not answer

import contextlib  # noqa: E402
import datetime  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402

warnings.filterwarnings("ignore", message=".*NumPy.*")
import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def read_safetensors(path):
    """Name -> tensor. Eight bytes of header length, a JSON header, the data."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", f"{name}: {entry['dtype']}"
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=begin)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class Layer(nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, dim, inner = model["hidden_size"], model["head_dim"], model["intermediate_size"]
        self.heads, self.kv_heads, self.dim = model["num_attention_heads"], model["num_key_value_heads"], dim
        self.input_layernorm = nn.RMSNorm(hidden, eps=model["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=model["rms_norm_eps"])
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(hidden, self.heads * dim, bias=False),
            "k_proj": nn.Linear(hidden, self.kv_heads * dim, bias=False),
            "v_proj": nn.Linear(hidden, self.kv_heads * dim, bias=False),
            "o_proj": nn.Linear(self.heads * dim, hidden, bias=False)})
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(hidden, inner, bias=False),
            "up_proj": nn.Linear(hidden, inner, bias=False),
            "down_proj": nn.Linear(inner, hidden, bias=False)})

    def forward(self, x, lengths, rope):
        h = self.input_layernorm(x)
        q = rotate(self.self_attn["q_proj"](h).view(-1, self.heads, self.dim), *rope).transpose(0, 1)
        k = rotate(self.self_attn["k_proj"](h).view(-1, self.kv_heads, self.dim), *rope).transpose(0, 1)
        v = self.self_attn["v_proj"](h).view(-1, self.kv_heads, self.dim).transpose(0, 1)
        documents = zip(*(t.unsqueeze(0).split(lengths, dim=2) for t in (q, k, v)))
        o = torch.cat([F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)
                       for qkv in documents], dim=2)
        x = x + self.self_attn["o_proj"](o[0].transpose(0, 1).reshape(x.shape[0], -1))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class Llama(nn.Module):
    """Parameters have Hugging Face's names."""

    def __init__(self, model):
        super().__init__()
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(model["vocab_size"], model["hidden_size"]),
            "layers": nn.ModuleList(Layer(model) for _ in range(model["num_hidden_layers"])),
            "norm": nn.RMSNorm(model["hidden_size"], eps=model["rms_norm_eps"])})
        self.lm_head = nn.Linear(model["hidden_size"], model["vocab_size"], bias=False)
        half = model["head_dim"] // 2
        self.frequencies = model["rope_theta"] ** -(torch.arange(half, dtype=torch.float64) / half)

    def forward(self, ids, targets, lengths):
        positions = torch.cat([torch.arange(length, dtype=torch.float64) for length in lengths])
        angles = positions.unsqueeze(1) * self.frequencies
        rope = [part.float().unsqueeze(1) for part in (angles.cos(), angles.sin())]
        x = self.model["embed_tokens"](ids)
        for layer in self.model["layers"]:
            x = layer(x, lengths, rope)
        logits = self.lm_head(self.model["norm"](x))
        return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")


class Rival:
    def __init__(self):
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{ARGUMENTS.store}", rank=ARGUMENTS.rank, world_size=ARGUMENTS.size,
            timeout=datetime.timedelta(seconds=ARGUMENTS.timeout))
        llama = Llama(ARGUMENTS.model)
        llama.load_state_dict(read_safetensors(ARGUMENTS.weights))
        self.ddp = nn.parallel.DistributedDataParallel(llama, gradient_as_bucket_view=True)
        self.parameters = list(llama.parameters())
        self.computed_s = 0.0
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.note_time)
        keys = ARGUMENTS.optimizer
        self.max_norm = keys["max_grad_norm"]
        groups = [{"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": keys["weight_decay"]},
                  {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=keys["lr"], betas=(keys["beta1"], keys["beta2"]),
                                           eps=keys["eps"], fused=True)

    def note_time(self, _):
        """The last of a step: when this rank's own gradients are complete and only the sum is awaited."""
        self.computed_s = time.monotonic()

    def take(self, batch):
        # DDP takes the mean over ranks; the loss is a mean over the batch's targets.
        self.scale = ARGUMENTS.size / batch["num_targets"]
        self.nano_batches = [(torch.tensor(n["ids"]), torch.tensor(n["targets"]), n["lengths"])
                             for n in batch["nano_batches"]]
        return {"ready": True}

    def run(self):
        torch.distributed.barrier()
        begin, processor_begin, loss_sum = time.monotonic(), time.process_time(), 0.0
        self.optimizer.zero_grad()
        for index, nano_batch in enumerate(self.nano_batches):
            last = index + 1 == len(self.nano_batches)
            with contextlib.nullcontext() if last else self.ddp.no_sync():
                loss = self.ddp(*nano_batch)
                (loss * self.scale).backward()
                loss_sum += loss.item()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.optimizer.step()
        end = time.monotonic()
        return {"begin_s": begin, "computed_s": self.computed_s, "end_s": end,
                "processor_s": time.process_time() - processor_begin, "loss_sum": loss_sum,
                "gradient_norm": norm.item()}


def main():
    rival = Rival()
    for line in sys.stdin:
        command = json.loads(line)
        answer = rival.take(command["batch"]) if "batch" in command else rival.run()
        print(json.dumps(answer), file=ANSWERS)
    torch.distributed.destroy_process_group()


main()
