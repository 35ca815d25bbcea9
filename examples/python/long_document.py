"""One document over all ranks: the memory of a rank falls as one over the number of ranks, and the loss stays what it was.

    torchrun --nproc-per-node 1 long_document.py
    torchrun --nproc-per-node 4 long_document.py

It needs transformers, no download and no GPU. Rank 0 reads the document, the other ranks read nothing.
"""

import os
import pathlib
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, LlamaConfig

import distca
import distca.transformers

TOKENS = int(os.environ.get("TOKENS", 8192))
STEPS = 3


def documents():
    """A batch of one document, in which a run of 40 tokens comes again and again."""
    draw = random.Random(1)
    run = [draw.randrange(256) for _ in range(40)]
    for step in range(STEPS):
        ids = torch.tensor([(run * (TOKENS // 40 + 2))[step : step + TOKENS]])
        yield {"input_ids": ids, "labels": ids.clone()}


def peak_of(device, begin=False):
    """Bytes that this process has held at most since `begin`."""
    if device.type == "cuda":
        if begin:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if begin:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":") for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) << 10


def main():
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=256, hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=TOKENS)).to(device)
    distca.transformers.attach(model)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = list(documents()) if rank == 0 else [None] * STEPS
    base = peak_of(device, begin=True)
    for step, batch in enumerate(distca.transformers.shard(loader, model)):
        rows = batch["input_ids"].shape[1]
        batch = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        loss = wrapped(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if rank == 0:
            print(f"step {step} loss {loss.item() / ranks:.6f}")
    sent = distca.statistics().sent_bytes if ranks > 1 else 0
    told = [None] * ranks
    dist.all_gather_object(told, (rows, peak_of(device) - base, sent // STEPS))
    if rank == 0:
        print(distca.report(model))
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        print(f"{ranks} ranks, a document of {TOKENS} tokens; weights {weights >> 20} MB, and as much for gradients")
        for of_rank, (rows, peak, sent) in enumerate(told):
            print(f"rank {of_rank}: {rows} tokens, at most {peak >> 20} MB more than before the first step; sent {sent >> 20} MB a step")
    del wrapped  # else DDP would end the group, with Python's lock held, for which a thread of Gloo may wait
    dist.barrier()  # a process that ends while another one still talks may abort within Gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
