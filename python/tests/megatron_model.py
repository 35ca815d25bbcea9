"""Megatron-Core's GPTModel on CPUs, in ranks and in one process with PyTorch's own attention: what tests compare."""

import contextlib
import copy
import functools
import re
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attention_model import cu_seqlens_of, distance, sdpa

warnings.filterwarnings("ignore", module="megatron")  # of what is not installed on machines without a GPU

import distca.megatron  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel import random  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

import distca as ours  # noqa: E402

VOCABULARY = 64
NO_TARGET = -100  # as of cross_entropy


class Sdpa(torch.nn.Module):
    """A core attention for Megatron that knows packed documents, as its own does on CUDA alone."""

    def __init__(self, *, config, layer_number, **_):
        super().__init__()
        window = config.window_size
        self.window_left = -1 if window is None else window[0]

    def forward(self, query, key, value, attention_mask, /, *, attn_mask_type, attention_bias, packed_seq_params):
        if packed_seq_params is not None:
            return sdpa(query, key, value, packed_seq_params.cu_seqlens_q, self.window_left).flatten(1)
        s, b = query.shape[:2]
        rows = [x.transpose(0, 1).flatten(0, 1) for x in (query, key, value)]
        return sdpa(*rows, cu_seqlens_of([s] * b), self.window_left).view(b, s, -1).transpose(0, 1)


def with_sdpa(spec):
    spec.submodules.self_attention.submodules.core_attention = Sdpa
    return spec


def on_cpu():
    """Has Megatron find the CPU where it asks for the CUDA device of this process."""
    if torch.cuda.current_device is cpu:
        return
    torch.cuda.current_device, torch.cuda.synchronize, torch.cuda.current_stream = cpu, cpu, lambda: None
    torch.Tensor.cuda = lambda tensor, *_, **named: tensor
    random._get_all_rng_states, random._set_all_rng_states, random._fork_rng = tuple, lambda *_: None, contextlib.nullcontext
    for name in ("zeros", "tensor"):
        setattr(torch, name, on_this_device(getattr(torch, name)))
    type_of = torch.Tensor.type  # the optimizer takes parameters of torch.cuda.FloatTensor
    torch.Tensor.type = lambda tensor, *given, **named: (
        type_of(tensor, *given, **named) if given or named else type_of(tensor).replace("torch.", "torch.cuda."))


def cpu():
    return torch.device("cpu")


def on_this_device(function):
    @functools.wraps(function)
    def called(*arguments, **keywords):
        if keywords.get("device") == "cuda":
            keywords["device"] = "cpu"
        keywords.pop("pin_memory", None)
        return function(*arguments, **keywords)

    return called


_divisions = {}  # (tensor-, pipeline-, context-parallel ranks) -> what Megatron keeps of its groups


def divide(tensor_parallel, pipeline_parallel, context_parallel=1):
    """Gives Megatron its groups of this many ranks. They are made once and stay."""
    on_cpu()
    wanted, state = (tensor_parallel, pipeline_parallel, context_parallel), vars(parallel_state)
    if wanted not in _divisions:
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_parallel, pipeline_parallel, context_parallel_size=context_parallel)
        _divisions[wanted] = {name: value for name, value in state.items() if name.startswith("_") and name.isupper()}
    state.update(_divisions[wanted])


@functools.cache
def alone():
    """Groups of this rank by itself."""
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    names = ("tp", "pp", "mp", "embd", "pos_embd", "cp", "tp_cp", "hcp", "ep", "expt_tp", "tp_ep", "tp_ep_pp", "dp",
             "dp_cp", "expt_dp", "intra_dp_cp", "intra_expt_dp")
    return ProcessGroupCollection(**dict.fromkeys(names, group))


def config_of(dtype, tp=1, pp=1, **changes):
    usual = dict(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, kv_channels=8, ffn_hidden_size=48,
        attention_dropout=0.0, hidden_dropout=0.0, add_bias_linear=False, use_cpu_initialization=True,
        params_dtype=dtype, pipeline_dtype=dtype, bf16=dtype == torch.bfloat16, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, variable_seq_lengths=True, moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True, batch_p2p_sync=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False)
    return TransformerConfig(**{**usual, **changes})


def model_of(config, spec, pg_collection=None):
    torch.manual_seed(3)
    first, last = (True, True) if pg_collection else (
        parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage())
    return GPTModel(config, spec, VOCABULARY, 4096, pre_process=first, post_process=last, parallel_output=False,
                    position_embedding_type="rope", pg_collection=pg_collection).to(config.params_dtype)


def shards(model, reference):
    """(a parameter of this rank, what of the reference's parameter it is, the function that takes that part)."""
    named = dict(reference.named_parameters())
    first = parallel_state.get_pipeline_model_parallel_rank() * len(model.decoder.layers)
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in model.named_parameters():
        whole = named[re.sub(r"layers\.(\d+)", lambda found: f"layers.{int(found[1]) + first}", name)]
        if parameter.shape == whole.shape:
            yield parameter, whole, lambda tensor: tensor
        else:
            yield parameter, whole, lambda tensor, dim=parameter.partition_dim: tensor.chunk(size, dim)[rank]


class Batch:
    """Tokens and targets of documents, packed. Without a document, one token of padding that has no target."""

    def __init__(self, lengths, seed):
        is_empty, lengths = not lengths, lengths or [1]
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (1, sum(lengths)), generator=generator)
        self.labels = torch.randint(VOCABULARY, (1, sum(lengths)), generator=generator)
        if is_empty:
            self.labels.fill_(NO_TARGET)
        self.positions = torch.cat([torch.arange(length) for length in lengths])[None]
        self.lengths = lengths

    def packed(self):
        cu_seqlens, longest = cu_seqlens_of(self.lengths), max(self.lengths)
        return PackedSeqParams("thd", cu_seqlens, cu_seqlens, max_seqlen_q=longest, max_seqlen_kv=longest)

    def logits(self, model):
        return model(self.tokens, self.positions, None, packed_seq_params=self.packed())

    def cut(self, rank, ranks):
        return CutBatch(self, rank, ranks)


class CutBatch:
    """What one of context-parallel ranks has of a batch, with room behind documents that are not to be cut without."""

    def __init__(self, batch, rank, ranks):
        rooms = [-length % (2 * ranks) for length in batch.lengths]
        self.lengths, self.room = batch.lengths, sum(rooms) > 0
        self.padded = [length + room for length, room in zip(batch.lengths, rooms)]
        self.tokens, self.labels, self.positions = (
            torch.cat([zigzag(F.pad(one, (0, room), value=value), rank, ranks)
                       for one, room in zip(rows.split(batch.lengths, dim=1), rooms)], dim=1)
            for rows, value in ((batch.tokens, 0), (batch.labels, NO_TARGET), (batch.positions, 0)))

    def logits(self, model):
        cu_seqlens, longest = cu_seqlens_of(self.lengths), max(self.padded)
        padded = cu_seqlens_of(self.padded) if self.room else None
        packed = PackedSeqParams("thd", cu_seqlens, cu_seqlens, padded, padded, longest, longest)
        return model(self.tokens, self.positions, None, packed_seq_params=packed)


def zigzag(rows, rank, ranks, dim=1):
    """Chunks `rank` and 2 ranks - 1 - rank."""
    chunks = rows.chunk(2 * ranks, dim)
    return torch.cat([chunks[rank], chunks[-1 - rank]], dim)


class Rows:
    """Sequences of equal length, which are not packed."""

    def __init__(self, b, s, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCABULARY, (b, s), generator=generator)
        self.labels = torch.randint(VOCABULARY, (b, s), generator=generator)
        self.positions = torch.arange(s).expand(b, s)
        self.mask = torch.ones(1, 1, s, s, dtype=torch.bool).triu(1)

    def logits(self, model):
        return model(self.tokens, self.positions, self.mask)

    def cut(self, rank, ranks):
        """What one of context-parallel ranks has."""
        cut = copy.copy(self)
        cut.tokens, cut.labels, cut.positions = (
            zigzag(rows, rank, ranks) for rows in (self.tokens, self.labels, self.positions))
        cut.mask = zigzag(self.mask, rank, ranks, dim=2)  # as Megatron's get_batch_on_this_cp_rank does
        return cut


def targets_of(labels):
    return (labels != NO_TARGET).sum().item()


def loss_of(labels, logits):
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, torch.tensor(targets_of(labels), dtype=torch.int), {"loss": loss.detach()}


def forward_step(batches, model):
    batch = next(batches)
    return batch.logits(model), functools.partial(loss_of, batch.labels)


def share_of_a_token(batches):
    """1 / tokens, as Megatron rounds it: to float32 whatever the model computes in."""
    return (1.0 / torch.tensor(sum(targets_of(batch.labels) for batch in batches), dtype=torch.int)).item()


def reference_of(config, batches):
    """A model of this process alone, and its mean loss over all ranks' batches, with gradients."""
    model = model_of(config, with_sdpa(get_gpt_layer_local_spec()), alone())
    share = share_of_a_token(batches)
    loss = 0.0
    for batch in batches:
        part = loss_of(batch.labels, batch.logits(model))[0] * share
        part.backward()
        loss += part.item()
    return model, loss


def balanced_of(config, reference, spec=None, **ddp):
    """Megatron's DDP of a model of this rank with the reference's weights."""
    model = model_of(config, distca.megatron.use(spec or get_gpt_layer_local_spec()))
    with torch.no_grad():
        for parameter, whole, part in shards(model, reference):
            parameter.copy_(part(whole))
    config.finalize_model_grads_func = finalize_model_grads
    return DistributedDataParallel(config, DistributedDataParallelConfig(**ddp), model)


def play(model, batches, forward_only=False):
    """Megatron's schedule over this rank's micro-batches. The sum of their losses, on the last stage."""
    found = get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter(batches), model=[model], num_microbatches=len(batches),
        seq_length=1, micro_batch_size=1, forward_only=forward_only)
    return sum(one["loss"].item() for one in found)


def micro_batches(of_rank, rank):
    """Of lists of documents, and of (sequences, their length)."""
    return [Rows(*one, 100 * rank + i) if isinstance(one, tuple) else Batch(one, 100 * rank + i) for i, one in enumerate(of_rank)]


def compare(batches_of, tp, pp, dtype, cp=1, **changes):
    """{what differs, relative to the reference: how much}, {what was done}. batches_of: DP rank -> micro-batches."""
    divide(tp, pp, cp)
    dp_group = parallel_state.get_data_parallel_group()
    shared = parallel_state.get_data_parallel_group(with_context_parallel=True) if cp > 1 else dp_group
    everybody = [batch for rank in range(dp_group.size()) for batch in batches_of(rank)]
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    reference, loss = reference_of(config_of(wide, **changes), everybody)
    model = balanced_of(config_of(dtype, tp, pp, context_parallel_size=cp, **changes), reference)
    before = ours.statistics(shared)
    mine = batches_of(dp_group.rank())
    if cp > 1:
        mine = [batch.cut(parallel_state.get_context_parallel_rank(), cp) for batch in mine]
    summed = torch.tensor(play(model, mine), dtype=torch.float64)
    after = ours.statistics(shared)
    assert ours.report(model) == ours.report(shared)
    dist.all_reduce(summed, group=shared)
    pairs = {name: (parameter.main_grad, part(whole.grad)) for (name, _), (parameter, whole, part) in
             zip(model.module.named_parameters(), shards(model.module, reference), strict=True)}
    differs = {name: distance(*pair) for name, pair in pairs.items()}
    if dtype == torch.bfloat16:  # gradients of single parameters are sums that cancel
        got, want = (torch.cat([one.flatten().float() for one in side]) for side in zip(*pairs.values()))
        differs = {"all gradients": distance(got, want)}
    if parallel_state.is_pipeline_last_stage():
        differs["loss"] = abs(summed.item() * share_of_a_token(everybody) - loss) / loss
    done = {name: getattr(after, name) - getattr(before, name) for name in vars(after)}
    return differs, done
