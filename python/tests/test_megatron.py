"""A GPTModel of Megatron-Core with distca.megatron, in its own DDP and schedules, against one process with sdpa."""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

import megatron_model as megatron  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from pairs import pairs_of  # noqa: E402
from rank_processes import Ranks  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distca as ours  # noqa: E402

# Of bfloat16, all gradients together: the whole model computes in it, and is compared with float32.
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 6e-2}
LENGTHS = {  # of the documents, by DP rank and micro-batch
    "odd": [[[13, 301, 5], [129], [77, 3]], [[40, 211], [1, 7], [64]]],
    "one token": [[[1], [1, 400, 1], [1, 1]], [[1, 1], [1], [257, 1]]],
    "a long document": [[[1200], [3, 2], [20]], [[31], [9], [2, 2]]],
    "a rank with little work": [[[1], [2], [1]], [[700, 90], [350], [500]]],
    "an empty rank": [[[], [31], []], [[40, 211], [1, 7], [64]]],
    "rows": [[(2, 70), (1, 301), (3, 5)], [(1, 40), (2, 40), (1, 9)]],  # sequences and their length, not packed
}
WINDOWS = [None, (20, 0)]


def batches_of(lengths, rank):
    return megatron.micro_batches(LENGTHS[lengths][rank], rank)


def compare(lengths, dtype, tp=1, pp=1, **changes):
    differs, done = megatron.compare(lambda rank: batches_of(lengths, rank), tp, pp, dtype, **changes)
    worst = max(differs, key=differs.get)
    return differs[worst], worst, done


@pytest.fixture(scope="module")
def eight():
    with Ranks(8) as ranks:
        yield ranks


def check(found, dtype, layers=2, micro_batches=3, is_balanced=True):
    for difference, name, done in found:
        assert difference <= BOUND[dtype], (name, difference)
        assert (done["forwards"], done["backwards"]) == (layers * micro_batches,) * 2
        assert done["plans"] == micro_batches, "the layers of a forward share a plan"
    assert (sum(done["sent_bytes"] for _, _, done in found) > 0) == is_balanced


def run_two(ranks, lengths, dtype, window):
    check(ranks.run(_windowed, lengths, dtype, 1, 1, window), dtype)


def run_split(ranks, lengths, dtype, window, split):
    tp, pp = split
    # 1F1B: the first stage has two forwards waiting when it begins with backwards. It holds two of four layers.
    found = ranks.run(_windowed, lengths, dtype, tp, pp, window, 2 * pp)
    check(found, dtype, is_balanced=ranks.size > tp * pp)


def _windowed(lengths, dtype, tp, pp, window, layers=2):
    return compare(lengths, dtype, tp, pp, window_size=window, num_layers=layers)


@pytest.mark.parametrize("lengths, dtype, window", pairs_of(lengths=[*LENGTHS], dtype=[*BOUND], window=WINDOWS),
                         ids=str)
def test_two_data_parallel_ranks(two, lengths, dtype, window):
    run_two(two, lengths, dtype, window)


SPLITS = [(2, 1), (1, 2)]


@pytest.mark.parametrize("lengths, dtype, split, window",
                         pairs_of(lengths=[*LENGTHS], dtype=[*BOUND], split=SPLITS, window=WINDOWS), ids=str)
def test_tensor_or_pipeline_parallel(four, lengths, dtype, split, window):
    run_split(four, lengths, dtype, window, split)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_tensor_and_pipeline_parallel_without_data_parallel_ranks(four, dtype):
    """Four ranks are all of one model then, so each computes its own heads and layers alone."""
    run_split(four, "odd", dtype, None, (2, 2))


@pytest.mark.parametrize("lengths", ["odd", "rows"])
def test_selective_recomputation(two, lengths):
    """Nothing is sent or computed a second time."""
    check(two.run(recomputed, lengths), torch.float64)


def recomputed(lengths):
    return compare(lengths, torch.float64, recompute_granularity="selective", recompute_modules=["core_attn"])


@pytest.mark.full
@pytest.mark.parametrize("lengths, dtype, window", pairs_of(lengths=[*LENGTHS], dtype=[*BOUND], window=WINDOWS), ids=str)
def test_tensor_and_pipeline_parallel(eight, lengths, dtype, window):
    run_split(eight, lengths, dtype, window, (2, 2))


@pytest.mark.full
@pytest.mark.parametrize("lengths, dtype, window", list(itertools.product(LENGTHS, BOUND, WINDOWS)), ids=str)
def test_all_of_two_data_parallel_ranks(two, lengths, dtype, window):
    run_two(two, lengths, dtype, window)


@pytest.mark.full
@pytest.mark.parametrize("lengths, dtype, window, split", list(itertools.product(LENGTHS, BOUND, WINDOWS, SPLITS)),
                         ids=str)
def test_all_of_tensor_or_pipeline_parallel(four, lengths, dtype, window, split):
    run_split(four, lengths, dtype, window, split)


def train(lengths, steps):
    """The losses of steps with Megatron's distributed optimizer, and of the reference with AdamW."""
    megatron.divide(1, 1)
    group = parallel_state.get_data_parallel_group()
    everybody = [batch for rank in range(group.size()) for batch in batches_of(lengths, rank)]
    reference, _ = megatron.reference_of(megatron.config_of(torch.float32), [])
    model = megatron.balanced_of(megatron.config_of(torch.float32), reference, use_distributed_optimizer=True)
    settings = dict(lr=1e-2, weight_decay=0.0)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", clip_grad=0.0, use_distributed_optimizer=True, adam_beta2=0.999, **settings), [model])
    want = torch.optim.AdamW(reference.parameters(), **settings)
    losses = []
    for _ in range(steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = torch.tensor(megatron.play(model, batches_of(lengths, group.rank())))
        dist.all_reduce(loss, group=group)
        assert optimizer.step()[0]
        want.zero_grad()
        expected = 0.0
        for batch in everybody:
            part = megatron.loss_of(batch.labels, batch.logits(reference))[0] * megatron.share_of_a_token(everybody)
            part.backward()
            expected += part.item()
        want.step()
        losses.append((loss.item() * megatron.share_of_a_token(everybody), expected))
    return losses


def test_the_distributed_optimizer_trains_as_one_process(two):
    for losses in two.run(train, "odd", 4):
        assert all(abs(got - want) <= 1e-5 * want for got, want in losses), losses
        assert losses[-1][0] < 0.97 * losses[0][0], losses


def evaluate_between(lengths):
    """Between forwards and backwards, ranks evaluate, another rank another number of times."""
    megatron.divide(1, 1)
    rank, group = dist.get_rank(), parallel_state.get_data_parallel_group()
    mine = batches_of(lengths, rank)
    reference, _ = megatron.reference_of(megatron.config_of(torch.float64), [])
    model = megatron.balanced_of(megatron.config_of(torch.float64), reference)
    logits = [batch.logits(model) for batch in mine]
    before = ours.statistics(group)
    with torch.no_grad():
        for _ in range(2 * rank + 1):
            found = megatron.play(model, mine, forward_only=True)
    assert ours.statistics(group) == before
    for batch, one in zip(mine, logits):
        megatron.loss_of(batch.labels, one)[0].backward()
    expected = 0.0
    for other in range(group.size()):
        for batch in batches_of(lengths, other):
            loss = megatron.loss_of(batch.labels, batch.logits(reference))[0]
            loss.backward()
            expected += loss.item() if other == rank else 0.0
    model.finish_grad_sync()
    differs = [megatron.distance(p.main_grad, whole.grad) for p, whole, _ in megatron.shards(model.module, reference)]
    return max(differs), abs(found - expected) / expected


@pytest.mark.parametrize("lengths", ["odd", "rows"])
def test_ranks_evaluate_between_forward_and_backward(two, lengths):
    assert max(max(found) for found in two.run(evaluate_between, lengths)) < 1e-10


def checkpointed(lengths):
    """Whole layers under torch.utils.checkpoint: the gradients' difference, and the attention computed in backward."""
    megatron.divide(1, 1)
    group = parallel_state.get_data_parallel_group()
    everybody = [batch for rank in range(2) for batch in batches_of(lengths, rank)]
    reference, _ = megatron.reference_of(megatron.config_of(torch.float64), everybody)
    model = megatron.balanced_of(megatron.config_of(torch.float64), reference)
    for layer in model.module.decoder.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    before = ours.statistics(group)
    megatron.play(model, batches_of(lengths, group.rank()))
    after = ours.statistics(group)
    differs = [megatron.distance(p.main_grad, whole.grad) for p, whole, _ in megatron.shards(model.module, reference)]
    return max(differs), after.forwards - before.forwards


def test_checkpointing_that_is_not_reentrant(two):
    for difference, forwards in two.run(checkpointed, "odd"):
        assert difference < 1e-10 and forwards == 2 * 3
    two.tell(checkpointed, "rows")
    for rank in range(2):
        good, line = two.hear(rank)
        assert not good and "attention under torch.utils.checkpoint needs packed_seq_params" in line.splitlines()[0]
