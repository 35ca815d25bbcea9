#!/usr/bin/env python3
"""The rival of bench/transformers: a Llama of the package transformers in plain PyTorch, sdpa a document, fused AdamW.

Started by bench/transformers with a JSON object: threads; optimizer, keys of [optimizer]. Between commands it waits in a
read. On standard input a line a command, on standard output a line an answer, both JSON:
  (none)  -> {"transformers", "torch"}, once everything is imported and has run on a tiny model
  {"load": FOLDER}, with config.json and model.safetensors  -> {"parameters"}
  {"step": {"nano_batches": [{"lengths", "ids", "targets", "positions"}], "num_targets"}}
      -> {"elapsed", "step", "mean_loss", "gradient_norm", and the parts of the step as bench/one_worker.h names them}
Times are in seconds, of the clock that bench/one_worker.h says. Ends with its standard input.
"""

import json
import os
import sys
import time
import types

ARGUMENTS = types.SimpleNamespace(**json.loads(sys.argv[1]))
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever else prints does not answer
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

try:
    import transformers
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    sys.exit(f"bench/transformers_rival.py: error: {error}; install it: {sys.executable} -m pip install transformers")

transformers.utils.logging.disable_progress_bar()


class Clock:
    """Divides a step into parts: what ends at a mark began at the one before."""

    now = staticmethod(time.process_time if ARGUMENTS.threads == 1 else time.monotonic)

    def begin(self):
        self.parts, self.last = dict.fromkeys(PARTS, 0.0), self.now()

    def mark(self, part):
        now = self.now()
        self.parts[part] += now - self.last
        self.last = now


PARTS = ("embed", "pre_attention", "attention forward", "attention backward", "post_attention", "loss", "optimizer")
CLOCK = Clock()


class Documents(torch.autograd.Function):
    """Causal attention of each document, q, k, v [1, heads, T, dim]. One function, so that the clock has all of it: the
    division by documents, PyTorch's operator, and putting the parts together, forward and backward."""

    @staticmethod
    def forward(context, q, k, v, lengths, scale):
        CLOCK.mark("pre_attention")
        context.inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        with torch.enable_grad():
            parts = zip(*(t.split(lengths, dim=2) for t in context.inputs))
            context.output = torch.cat([
                F.scaled_dot_product_attention(*part, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
                for part in parts], dim=1)
        CLOCK.mark("attention forward")
        return context.output.detach()

    @staticmethod
    def backward(context, d_output):
        CLOCK.mark("post_attention")
        gradients = torch.autograd.grad(context.output, context.inputs, d_output)
        del context.inputs, context.output
        CLOCK.mark("attention backward")
        return *gradients, None, None


def attention(module, q, k, v, attention_mask, scaling, document_lengths, **_):
    assert attention_mask is None
    return Documents.apply(q, k, v, document_lengths, scaling), None


AttentionInterface.register("documents", attention)


def mark_layers(llama):
    """Marks where layers begin and end, forward and, by the gradients of what lies between them, backward."""

    def after(part, backward_part):
        def mark(module, inputs, x):
            CLOCK.mark(part)
            x.register_hook(lambda _: CLOCK.mark(backward_part))
        return mark

    llama.embed_tokens.register_forward_hook(after("embed", "pre_attention"))
    llama.rotary_emb.register_forward_hook(lambda *_: CLOCK.mark("embed"))
    for layer in llama.layers:
        last = layer is llama.layers[-1]
        layer.register_forward_hook(after("post_attention", "loss" if last else "pre_attention"))


class Rival:
    def __init__(self, model):
        self.model = model.train()
        mark_layers(model.model)
        self.parameters = list(model.parameters())
        keys = ARGUMENTS.optimizer
        self.max_norm = keys["max_grad_norm"]
        groups = [{"params": [p for p in self.parameters if p.dim() >= 2], "weight_decay": keys["weight_decay"]},
                  {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=keys["lr"], betas=(keys["beta1"], keys["beta2"]),
                                           eps=keys["eps"], fused=True)

    def step(self, batch):
        inputs = [{"input_ids": torch.tensor([n["ids"]]), "position_ids": torch.tensor([n["positions"]]),
                   "targets": torch.tensor([n["targets"]]), "document_lengths": n["lengths"]}
                  for n in batch["nano_batches"]]
        loss, begin = 0.0, time.monotonic()
        CLOCK.begin()
        self.optimizer.zero_grad()
        CLOCK.mark("optimizer")
        for nano_batch in inputs:
            targets = nano_batch.pop("targets")
            part = self.model(**nano_batch, labels=targets, shift_labels=targets, use_cache=False,
                              num_items_in_batch=batch["num_targets"]).loss
            part.backward()
            loss += part.item()
            CLOCK.mark("embed")
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm).item()
        self.optimizer.step()
        CLOCK.mark("optimizer")
        return CLOCK.parts | {"elapsed": time.monotonic() - begin, "step": sum(CLOCK.parts.values()), "mean_loss": loss,
                              "gradient_norm": norm}


def rehearse():
    """A step of a tiny model: what PyTorch and transformers load at first use is no part of a model's memory."""
    tiny = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                       num_key_value_heads=1, attn_implementation="documents")
    nano_batch = {"lengths": [2], "ids": [1, 2], "targets": [2, -100], "positions": [0, 1]}
    Rival(LlamaForCausalLM(tiny)).step({"nano_batches": [nano_batch], "num_targets": 1})


def main():
    torch.set_num_threads(ARGUMENTS.threads)
    rehearse()
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__}), file=ANSWERS)
    rival = None
    for line in sys.stdin:
        command = json.loads(line)
        if "load" in command:
            rival = Rival(LlamaForCausalLM.from_pretrained(command["load"], dtype=torch.float32,
                                                           attn_implementation="documents"))
            answer = {"parameters": sum(parameter.numel() for parameter in rival.parameters)}
        else:
            answer = rival.step(command["step"])
        print(json.dumps(answer), file=ANSWERS)


main()
