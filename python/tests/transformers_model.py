"""Tiny random models of Transformers, and what one process computes with sdpa, document by document."""

import contextlib
import functools
import itertools

import torch
import torch.distributed as dist
import transformers
from attention_model import cu_seqlens_of
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import distca.transformers

_SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 4096,
          "tie_word_embeddings": False}
CONFIGS = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen2": (transformers.Qwen2Config, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": (transformers.Qwen3Config, {}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 6}),
    "ministral": (transformers.MinistralConfig,
                  {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}),
}


def make(kind="llama", dtype=torch.float32, attn="sdpa", **changes):
    """A model [2 layers, hidden 32] of random weights, the same on every rank."""
    config_class, own = CONFIGS[kind]
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**{**_SIZES, **own, **changes}),
                                                          attn_implementation=attn)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():  # gradients of all weights are of one size
            if parameter.dim() == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.to(dtype).train()


def keep_fp64(model):
    """Transformers' norms compute in fp32. These keep fp64."""

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(forward, module)


def documents_of(lengths, seed=1):
    """A list of [length] random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 64, (length,), generator=generator) for length in lengths]


def packed(documents, with_lengths=False):
    """What DataCollatorWithFlattening makes of documents: a row of all."""
    lengths = [len(document) for document in documents]
    row = torch.cat([torch.zeros(0, dtype=torch.int64), *documents])
    labels = row.clone()
    labels[[begin for begin, length in zip(itertools.accumulate(lengths, initial=0), lengths) if length]] = -100
    positions = torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(length) for length in lengths)])
    batch = {"input_ids": row[None], "labels": labels[None], "position_ids": positions[None]}
    if with_lengths:
        batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = cu_seqlens_of(lengths)
        batch["max_length_q"] = batch["max_length_k"] = max(lengths, default=0)
    return batch


def exact_loss(logits, labels, items):
    """In the precision of the logits; Transformers' own computes in fp32."""
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / items


def loss_of(model, batch, items):
    """The sum of the losses of all targets over `items`."""
    if next(model.parameters()).dtype == torch.float64:
        batch = dict(batch)
        labels = batch.pop("labels")
        return exact_loss(model(**batch).logits, labels, items)
    return model(**batch, num_items_in_batch=items).loss


def reference(model, documents, items):
    """(loss, {name: gradient}) of one process with sdpa, a document at a time."""
    total = 0.0
    for document in documents:
        if len(document) > 1:  # one token has no target
            loss = loss_of(model, packed([document]), items)
            loss.backward()
            total += loss.item()
    return total, {name: p.grad.double() for name, p in model.named_parameters()}


def _matrices_are_kept(context, operator, *arguments, **keywords):
    kept = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint(model, how):
    if how == "none":
        return
    keywords = {"use_reentrant": False}
    if how == "selective":
        keywords["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _matrices_are_kept)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=keywords)  # Transformers 5.20 has no newer name


def wrap(model, parallel):
    """DDP or FSDP2; gradients become the mean over ranks."""
    if parallel == "ddp":
        return DistributedDataParallel(model)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def full_gradients(model):
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        found[name.removeprefix("module.").removeprefix("_orig_mod.")] = gradient.double()
    return found


def autocast(precision):
    return torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()


def worst_gradient(got, want):
    """The largest difference of a tensor, relative to its own size, or to a thousandth of all gradients'."""
    whole = torch.stack([gradient.norm() for gradient in want.values()]).norm()
    assert got.keys() == want.keys()
    return max(((got[name] - want[name]).norm() / want[name].norm().clamp_min(1e-3 * whole)).item() for name in want)


def compare(kind, precision, nano_batches, parallel, checkpointing, compiled, lengths):
    """(difference of the loss, worst difference of a gradient, bytes sent) of this rank's step and one process's."""
    dtype = {"fp64": torch.float64, "bf16": torch.bfloat16}.get(precision, torch.float32)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    documents = [documents_of(lengths[r], seed=r) for r in range(ranks)]
    items = sum(max(len(document) - 1, 0) for of_rank in documents for document in of_rank)
    one = make(kind, torch.float32 if precision == "bf16" else dtype)
    model = make(kind, dtype)
    if precision == "bf16":
        one.load_state_dict(model.state_dict())  # of the same rounded weights
    for each in (one, model):
        if precision == "fp64":
            keep_fp64(each)
    want_loss, want = reference(one, [document for of_rank in documents for document in of_rank], items)
    distca.transformers.attach(model, nano_batches=nano_batches)
    checkpoint(model, checkpointing)
    # With DDP and Transformers until 5.23, PyTorch's splitting of graphs fails for what is checkpointed selectively, without
    # distca as well: '>' not supported between instances of 'NoneType' and 'NoneType', of ac_graph_id.
    torch._dynamo.config.optimize_ddp = checkpointing != "selective"
    if compiled == "layers":
        torch._dynamo.reset()
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
    wrapped = wrap(model, parallel)
    if compiled in ("whole", "inductor"):
        torch._dynamo.reset()
        wrapped = torch.compile(wrapped, backend="inductor" if compiled == "inductor" else "aot_eager")
    before = distca.statistics()
    with autocast(precision):
        loss = loss_of(wrapped, packed(documents[rank], with_lengths=rank == 0), items) * ranks
    loss.backward()
    after = distca.statistics()
    assert after.forwards - before.forwards == 2 * nano_batches == after.backwards - before.backwards
    total = loss.detach().double()
    dist.all_reduce(total)
    return (abs(total.item() / ranks - want_loss) / want_loss, worst_gradient(full_gradients(model), want),
            after.sent_bytes - before.sent_bytes)
