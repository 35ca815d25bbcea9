"""A plain training loop over DistributedDataParallel on documents of very different lengths.

    torchrun --nproc-per-node 2 ddp_loop.py

It needs no download and no GPU. One line of it is DistCA's: without DistCA, it is
`from sdpa_varlen import flash_attn_varlen_func`.
"""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from distca import flash_attn_varlen_func

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 64, 64, 4, 2, 16


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.into = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.out = torch.nn.Linear(HEADS * HEAD_DIM, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(),
            torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, cu_seqlens, longest):
        heads = self.into(self.norm(x)).unflatten(1, (-1, HEAD_DIM))
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        o = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True, layer=self.number)
        x = x + self.out(o.flatten(1))
        return x + self.mlp(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(number) for number in range(2))
        self.logits = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, cu_seqlens, longest):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cu_seqlens, longest)
        return self.logits(x)


def batch_of(rank, step):
    """Tokens [t] that count up within each of this rank's documents, [documents + 1] places, the greatest length."""
    draw = random.Random(1000 * step + rank)
    lengths = [min(int(20 * draw.paretovariate(0.9)), 1000) for _ in range(4)]
    tokens = torch.cat([(draw.randrange(VOCABULARY) + torch.arange(length)) % VOCABULARY for length in lengths])
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return tokens, cu_seqlens, max(lengths)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(8):
        tokens, cu_seqlens, longest = batch_of(dist.get_rank(), step)
        loss = F.cross_entropy(model(tokens, cu_seqlens, longest)[:-1], tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item() / dist.get_world_size():.6f}")
    del model  # else DDP would end the group, with Python's lock held, for which a thread of Gloo may wait
    dist.barrier()  # a process that ends while another one still talks may abort within Gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
