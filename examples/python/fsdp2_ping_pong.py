"""A Transformers model sharded by FSDP2, whose messages travel under its own computation. Two lines of it are DistCA's.

    torchrun --nproc-per-node 2 fsdp2_ping_pong.py

It needs no download and no GPU: the model is a tiny Qwen3 with random weights, and the documents are made up. Each rank's
documents are dealt to two nano-batches, and one computes while the other's Q, K, V and O are under way.
"""

import random

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import distca.transformers


def batch_of(rank, step):
    """Documents that count up, packed one behind the other. A few are long, most are short."""
    draw = random.Random(1000 * step + rank)
    lengths = [min(int(20 * draw.paretovariate(0.9)), 1000) for _ in range(4)]
    tokens = [(draw.randrange(64) + torch.arange(length)) % 64 for length in lengths]
    return transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(
        [{"input_ids": document.tolist()} for document in tokens])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16)
    model = transformers.AutoModelForCausalLM.from_config(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    distca.transformers.attach(model, nano_batches=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(8):
        loss = model(**batch_of(dist.get_rank(), step), use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item() / dist.get_world_size():.6f}")
    dist.barrier()  # a process that ends while another one still talks may abort within Gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
