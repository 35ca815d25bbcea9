#!/usr/bin/env python3
"""A Llama in plain PyTorch on one device, which scripts/gpu_check.sh compares with: variable-length attention of
PyTorch's own FlashAttention, bf16 weights with fp32 masters, fused AdamW, norms of torch.nn.functional.

    bench/gpu_rival.py '{"device", "folder", "text", "documents", "steps", "optimizer"}'

folder: config.json and model.safetensors in fp32; text: one document, a byte a token; documents: how many of it are a
step. Recomputes what `train.recompute=full` does: all but attention and the head, whose backward follows each part of its
rows at once. A line of JSON a step: loss before the update, and
seconds. On a CPU, attention is scaled_dot_product_attention a document.
"""

import json
import math
import pathlib
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

TASK = json.loads(sys.argv[1])
FOLDER = pathlib.Path(TASK["folder"])
MODEL = json.loads((FOLDER / "config.json").read_text())
DEVICE = torch.device(TASK["device"])
HEADS, KV_HEADS, DIM = MODEL["num_attention_heads"], MODEL["num_key_value_heads"], MODEL["head_dim"]
LOSS_ROWS = 4096  # whose logits are there at a time


def stored(path):
    """Name -> fp32 tensor of a safetensors file."""
    data = torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)
    begin = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
    entries = json.loads(bytes(data[8:begin].tolist()))
    entries.pop("__metadata__", None)
    assert all(entry["dtype"] == "F32" for entry in entries.values()), "weights that are not fp32"
    return {name: data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]].clone().view(torch.float32)
            .reshape(entry["shape"]) for name, entry in entries.items()}


def attention(q, k, v, starts, longest):
    """Causal attention of each document, [tokens, heads, dim]."""
    if DEVICE.type == "cuda":
        # What torch.nn.attention.varlen calls, with fewer key heads than query heads.
        return torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, longest, longest, 0.0, True, False)[0]
    places = starts.tolist()
    parts = [F.scaled_dot_product_attention(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True)[0]
             for a, b in zip(places, places[1:])]
    return torch.cat(parts, 1).transpose(0, 1)


def rotated(x, cosines, sines):
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1).to(x.dtype)


class Llama:
    def __init__(self, masters):
        self.masters = {name: tensor.to(DEVICE).requires_grad_() for name, tensor in masters.items()}
        self.weights = {name: tensor.detach().to(torch.bfloat16).requires_grad_() for name, tensor in self.masters.items()}

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weights[name], MODEL["rms_norm_eps"])

    def before(self, x, layer, cosines, sines):
        part = f"model.layers.{layer}."
        h = self.norm(x, part + "input_layernorm.weight")
        q, k, v = (F.linear(h, self.weights[f"{part}self_attn.{one}_proj.weight"]).view(len(x), -1, DIM) for one in "qkv")
        return rotated(q, cosines, sines), rotated(k, cosines, sines), v

    def behind(self, x, o, layer):
        part = f"model.layers.{layer}."
        x = x + F.linear(o.reshape(len(x), -1), self.weights[part + "self_attn.o_proj.weight"])
        h = self.norm(x, part + "post_attention_layernorm.weight")
        gate, up, down = (self.weights[f"{part}mlp.{one}_proj.weight"] for one in ("gate", "up", "down"))
        return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)

    def head(self, x, targets):
        """The loss, a tensor without a graph. Leaves gradients at the head's weights and at x."""
        count = (targets != -100).sum()
        sums = []
        for rows, some in zip(x.split(LOSS_ROWS), targets.split(LOSS_ROWS)):
            logits = F.linear(rows, self.weights["lm_head.weight"]).float()
            loss = F.cross_entropy(logits, some, ignore_index=-100, reduction="sum") / count
            loss.backward()
            sums.append(loss.detach())
        return torch.stack(sums).sum()

    def step(self, ids, targets, positions, starts, longest):
        """The loss of a forward and backward."""
        half = DIM // 2
        frequencies = MODEL["rope_theta"] ** -(torch.arange(half, dtype=torch.float64, device=DEVICE) / half)
        angles = positions[:, None].double() * frequencies
        rope = [part.float()[:, None] for part in (angles.cos(), angles.sin())]
        x = F.embedding(ids, self.weights["model.embed_tokens.weight"])
        for layer in range(MODEL["num_hidden_layers"]):
            q, k, v = checkpoint(self.before, x, layer, *rope, use_reentrant=False)
            x = checkpoint(self.behind, x, attention(q, k, v, starts, longest), layer, use_reentrant=False)
        x = self.norm(x, "model.norm.weight")
        last = x.detach().requires_grad_()
        loss = self.head(last, targets)
        x.backward(last.grad)
        return loss


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Llama(stored(FOLDER / "model.safetensors"))
    keys = TASK["optimizer"]
    masters, weights = list(model.masters.values()), list(model.weights.values())
    groups = [{"params": [p for p in masters if p.dim() >= 2], "weight_decay": keys["weight_decay"]},
              {"params": [p for p in masters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=keys["lr"], betas=(keys["beta1"], keys["beta2"]), eps=keys["eps"], fused=True)
    document = torch.tensor(list(pathlib.Path(TASK["text"]).read_bytes()))
    length, count = len(document), TASK["documents"]
    targets = torch.cat([document[1:], torch.tensor([-100])]).repeat(count)
    batch = [x.to(DEVICE) for x in (document.repeat(count), targets, torch.arange(length).repeat(count),
                                    torch.arange(count + 1, dtype=torch.int32) * length)]
    for _ in range(TASK["steps"]):
        begin = time.monotonic()
        for weight in weights:
            weight.grad = None
        loss = model.step(*batch, length)
        for master, weight in zip(masters, weights):
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
        with torch.no_grad():
            torch._foreach_copy_([master.grad for master in masters], [weight.grad for weight in weights])
            torch.nn.utils.clip_grad_norm_(masters, keys["max_grad_norm"], foreach=True)
            optimizer.step()
            torch._foreach_copy_(weights, masters)
        value = loss.item()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        assert math.isfinite(value), "the loss is not finite"
        print(json.dumps({"loss": value, "step_s": time.monotonic() - begin}), flush=True)


main()
