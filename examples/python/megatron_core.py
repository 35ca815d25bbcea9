"""Megatron-Core's GPTModel in Megatron's DistributedDataParallel, on packed documents of very different lengths.

    torchrun --nproc-per-node 2 megatron_core.py

It needs no download and no GPU. Two lines of it are DistCA's: without the import and the line with `use`, the core
attention is that of megatron_sdpa.py, because Megatron's own computes packed documents on CUDA alone.
"""

import random
import warnings

import torch
import torch.distributed as dist

warnings.filterwarnings("ignore", module="megatron")  # of what is not installed on machines without a GPU
import distca.megatron
from megatron_sdpa import PackedAttention
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import TransformerConfig

VOCABULARY = 64


def model_of(config):
    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    spec = distca.megatron.use(spec)
    torch.manual_seed(1)
    return GPTModel(config, spec, VOCABULARY, 4096, position_embedding_type="rope")


def batch_of(rank, step):
    """Tokens, targets and positions [1, t] of this rank's documents, in which tokens count up, and their lengths."""
    draw = random.Random(1000 * step + rank)
    lengths = [min(int(20 * draw.paretovariate(0.9)), 1000) for _ in range(4)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    tokens = torch.cat([(draw.randrange(VOCABULARY) + torch.arange(length)) % VOCABULARY for length in lengths])
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    packed = PackedSeqParams("thd", cu_seqlens, cu_seqlens, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
    return tokens[None], ((tokens + 1) % VOCABULARY)[None], positions[None], packed


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # Megatron asks for it where there is none, too
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=2, attention_dropout=0.0,
        hidden_dropout=0.0, use_cpu_initialization=True, masked_softmax_fusion=False, calculate_per_token_loss=True)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model_of(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(8):
        tokens, targets, positions, packed = batch_of(dist.get_rank(), step)
        model.zero_grad_buffer()
        loss = model(tokens, positions, None, labels=targets, packed_seq_params=packed).sum()
        loss.backward()
        number = torch.tensor(tokens.numel(), dtype=torch.int)
        finalize_model_grads([model], number)  # which sums over ranks both gradients and the number of tokens
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        dist.all_reduce(loss.detach_())
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item() / number.item():.6f}")
    dist.barrier()  # a process that ends while another one still talks may abort within Gloo
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
