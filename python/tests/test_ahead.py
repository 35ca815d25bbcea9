"""Lengths and plans one batch ahead: the same gradients, nothing planned within the step, errors where they belong."""

import gc
import threading
import time
import warnings
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, gradients, sdpa, tokens_of, worst
from rank_processes import Ranks, short_timeout_s

import distca as ours
from distca import _ahead
from distca._group import name_of
from distca._ops import ops

STEPS = [[[351, 20], [90, 1]], [[5], [400, 1, 1]], [[], [130]], [[200], [3, 3]], [[1] * 70, [140]]]


def batches():
    """A dictionary for each step, with this rank's documents."""
    for i, step in enumerate(STEPS):
        mine = step[dist.get_rank()]
        yield {"x": tokens_of(mine, i), "cu_seq_lens_q": cu_seqlens_of(mine)}


def windowed(q, k, v, cu_seqlens, layer=None):
    """Two kinds of layers: one plan for each."""
    return ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=layer, window_size=(40 if layer == 1 else -1, 0))


def sdpa_windowed(q, k, v, cu_seqlens, layer=None):
    return sdpa(q, k, v, cu_seqlens, 40 if layer == 1 else -1)


def warned(copies):
    """What is said where attention gets the tensors that were planned for, or copies, as DDP makes on a device."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in ours.plan_ahead(list(batches())):
            cu_seqlens = batch["cu_seq_lens_q"]
            Model(balanced)(batch["x"], cu_seqlens.clone() if copies else cu_seqlens).backward()
    return [str(one.message) for one in said]


def planned_by_this_thread():
    return ops.counts(name_of(None))[-1]


def train(ahead):
    """The worst gradient of each step, and how many plans the thread that trains made within it."""
    found = []
    for batch in ours.plan_ahead(list(batches())) if ahead else batches():
        before = planned_by_this_thread()
        pair = []
        for attend in (sdpa_windowed, windowed):
            model = Model(attend)
            model(batch["x"], batch["cu_seq_lens_q"]).backward()
            pair.append(gradients(model))
        found.append((worst(*pair, least=1e-12), planned_by_this_thread() - before))
    return found


def test_plans_are_there_when_a_batch_comes(two_ranks):
    found = two_ranks.run(train, True)  # first: plans are remembered for a while
    for ahead, plain in zip(found, two_ranks.run(train, False)):
        assert max(difference for difference, _ in plain + ahead) < 1e-10
        assert sum(made for _, made in plain) > len(STEPS)  # one for each window, unless it is remembered
        assert [made for _, made in ahead[2:]] == [0] * (len(STEPS) - 2)


def test_a_plan_that_no_forward_takes_is_said(two_ranks):
    assert two_ranks.run(warned, False) == [[], []]
    for said in two_ranks.run(warned, True):
        assert said and all("another cu_seqlens tensor" in line for line in said)


def layers_that_change(one_step):
    """A layer that the forward before did not have is planned when it comes."""
    differences = []
    for i, batch in enumerate(ours.plan_ahead(list(batches())[:3])):
        pair = []
        for attend, other in ((sdpa, sdpa_windowed), (balanced, windowed)):
            model = Model(attend if i != one_step else other)
            model(batch["x"], batch["cu_seq_lens_q"]).backward()
            pair.append(gradients(model))
        differences.append(worst(*pair, least=1e-12))
    return max(differences)


@pytest.mark.parametrize("one_step", [1, 2])
def test_layers_may_change(two_ranks, one_step):
    assert max(two_ranks.run(layers_that_change, one_step)) < 1e-10


def planned_and_not_used():
    """Batches that are skipped, or only evaluated, leave nothing behind."""
    differences = []
    for i, batch in enumerate(ours.plan_ahead(list(batches()))):
        if i == 1:
            continue
        with torch.set_grad_enabled(i != 3):
            loss = [Model(attend)(batch["x"], batch["cu_seq_lens_q"]) for attend in (sdpa, balanced)]
        differences.append(abs(loss[0] - loss[1]).item() / max(1, abs(loss[0].item())))
    return max(differences)


def test_batches_may_be_skipped(two_ranks):
    assert max(two_ranks.run(planned_and_not_used)) < 1e-10


def wraps():
    loader = torch.utils.data.DataLoader([1, 2, 3], batch_size=1)
    return len(ours.plan_ahead(loader)), ours.plan_ahead(loader).batch_size


def test_is_a_loader_like_the_one_within():
    assert wraps() == (3, 1)
    assert [batch["n"] for batch in ours.plan_ahead([{"n": 1}, {"n": 2}])] == [1, 2]  # of a single rank


class Counting:
    """A loader whose state is one dictionary, which it changes."""

    def __init__(self):
        self.state = {"batches": 0}

    def __iter__(self):
        for _ in range(3):
            self.state["batches"] += 1
            yield {"n": self.state["batches"]}

    def state_dict(self):
        return self.state


def states():
    ahead = ours.plan_ahead(Counting(), lambda batch: cu_seqlens_of([5]))
    return [(batch["n"], ahead.state_dict()["batches"]) for batch in ahead]


def test_a_state_is_that_of_the_batch_that_trains(two_ranks):
    assert two_ranks.run(states) == [[(1, 1), (2, 2), (3, 3)]] * 2


def unequal_tokens(linear_work):
    """Pairs that this rank computes, seen by the bytes that it gives away: the longer rank gives more."""
    torch.manual_seed(3)
    cu_seqlens = cu_seqlens_of([[2048], [1024, 1024, 300]][dist.get_rank()])
    x = torch.randn(int(cu_seqlens[-1]), 8, 8, dtype=torch.float64, requires_grad=True)
    q, k, v = x.split([4, 2, 2], dim=1)
    before = ours.statistics().sent_bytes
    o = ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=0, linear_work=linear_work)
    difference = worst([o.detach()], [sdpa(q, k, v, cu_seqlens).detach()])
    o.sum().backward()
    return difference, ours.statistics().sent_bytes - before


def test_ranks_with_fewer_tokens_get_more_attention(two_ranks):
    plain, whole = (two_ranks.run(unequal_tokens, work) for work in (0, 200_000))
    assert max(difference for difference, _ in plain + whole) < 1e-10
    # Rank 0 has one long document and fewer tokens: it keeps more of it.
    assert whole[0][1] < plain[0][1]


def disagreeing():
    try:
        unequal_tokens(100 + dist.get_rank())
    except RuntimeError as error:
        return str(error).splitlines()[0]


def test_unequal_linear_work_is_named(two_ranks):
    for line in two_ranks.run(disagreeing):
        assert "rank 1 calls attention with linear_work = 101, rank 0 with 100" in line


def work_that_changes():
    """Bytes that this rank sends in a step planned ahead: for the work of the step before, then for its own."""
    batches = [{"cu_seq_lens_q": cu_seqlens_of([[2048], [1024, 1024, 300]][dist.get_rank()])} for _ in range(6)]
    sent = []
    for i, batch in enumerate(ours.plan_ahead(batches)):
        before = ours.statistics().sent_bytes
        x = torch.ones(int(batch["cu_seq_lens_q"][-1]), 8, 8, dtype=torch.float64, requires_grad=True)
        q, k, v = x.split([4, 2, 2], dim=1)
        ours.attention(q, k, v, batch["cu_seq_lens_q"], batch["cu_seq_lens_q"], layer=0,
                       linear_work=200_000 if i < 3 else 0).sum().backward()
        sent.append(ours.statistics().sent_bytes - before)
    return sent


def test_linear_work_may_change(two_ranks):
    for sent in two_ranks.run(work_that_changes):
        assert len(set(sent[:3])) == 1 and len(set(sent[3:])) == 1
    assert two_ranks.run(work_that_changes)[0][0] < two_ranks.run(work_that_changes)[0][3]


def epochs():
    """How many forwards one tensor keeps that comes again in every epoch, and the worst gradient."""
    from distca._attention import _forwards

    batch = next(batches())
    kept, differences = [], []
    for _ in range(5):
        for one in ours.plan_ahead([batch, batch]):
            pair = []
            for attend in (sdpa, balanced):
                model = Model(attend)
                model(one["x"], one["cu_seq_lens_q"]).backward()
                pair.append(gradients(model))
            differences.append(worst(*pair))
            kept.append(len(_forwards[one["cu_seq_lens_q"]][name_of(None)]))
    return kept, max(differences)


def test_a_batch_that_comes_again_keeps_nothing(two_ranks):
    for kept, difference in two_ranks.run(epochs):
        assert max(kept) <= 2 and difference < 1e-10


def step_of(cu_seqlens, layers=1):
    tokens = int(cu_seqlens[-1])
    q, k, v = torch.ones(tokens, 8, 8, dtype=torch.float64, requires_grad=True).split([4, 2, 2], dim=1)
    for layer in range(layers):
        ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=layer).sum().backward(retain_graph=True)


def trained(batches):
    """The batches that were trained, and the first line of the error that came then."""
    done = []
    try:
        for one in ours.plan_ahead(batches, cu_seqlens=lambda batch: batch):
            step_of(one)
            done.append(int(one[-1]))
    except (ValueError, RuntimeError) as error:
        return done, type(error).__name__, str(error).splitlines()[0]
    return done, "", ""


def wrong_offsets(timeout_s):
    """A fault of batch 2 on one rank is raised with batch 2, after batch 1 has trained; the other rank names this one."""
    ours.init(timeout_s=timeout_s)
    cu_seqlens = [cu_seqlens_of([30, 9]), cu_seqlens_of([30]), cu_seqlens_of([30, 8])]
    if dist.get_rank() == 1:
        cu_seqlens[2] = torch.tensor([0, 30, 20])
    return trained(cu_seqlens)


def test_an_error_comes_with_its_batch():
    with Ranks(2) as ranks:
        first, second = ranks.run(wrong_offsets, short_timeout_s(3))
    assert first[:2] == ([39, 30], "RuntimeError") and first[2].startswith("rank 1 ")
    assert second == ([39, 30], "ValueError", "cu_seqlens_q begins with 0 and never descends")


def loaders_of(numbers):
    """Another number of batches on every rank; an even one afterwards, to see that the group works on."""
    uneven = [cu_seqlens_of([10 + i]) for i in range(numbers[dist.get_rank()])]
    return trained(uneven), trained([cu_seqlens_of([5]), cu_seqlens_of([6])])


@pytest.mark.parametrize("numbers", [(3, 2), (2, 4)])
def test_a_loader_that_ends_early_is_named_on_all_ranks(two_ranks, numbers):
    early = min(numbers)
    ends = ["goes on" if number > early else f"ended after {early} batches" for number in numbers]
    for uneven, even in two_ranks.run(loaders_of, numbers):
        assert uneven == ([10 + i for i in range(early)], "RuntimeError",
                          f"the loader of rank 1 {ends[1]}, that of rank 0 {ends[0]}: all ranks have equally many "
                          "batches (drop_last=True)")
        assert even == ([5, 6], "", "")


def test_a_rank_without_a_batch_is_named(two_ranks):
    line = "the loader of rank 1 {}, that of rank 0 {}: all ranks have equally many batches (drop_last=True)"
    assert two_ranks.run(trained_or_told) == [line.format("ended after 0 batches", "ended after 1 batches")] * 2


def trained_or_told():
    """Rank 1 has no batch, rank 0 one that it does not train."""
    try:
        list(ours.plan_ahead([cu_seqlens_of([3])] * (1 - dist.get_rank()), cu_seqlens=lambda batch: batch))
    except RuntimeError as error:
        return str(error).splitlines()[0]


def evaluates_within():
    """The documents of loops within a loop, whose own exchange rank 1 is slow to begin."""
    begin, done = _ahead._begin, []

    def slow(name, over, cu_seqlens, *more):
        if cu_seqlens.tolist()[-1] >= 50:
            time.sleep(0.3 * dist.get_rank())
        return begin(name, over, cu_seqlens, *more)

    with mock.patch.object(_ahead, "_begin", slow):
        for outer in ours.plan_ahead([cu_seqlens_of([n]) for n in (70, 60, 50)], cu_seqlens=lambda batch: batch):
            step_of(outer)
            within = trained([cu_seqlens_of([5 + dist.get_rank()]), cu_seqlens_of([4, 9])])
            done.append([int(outer[-1]), *within[0], *within[1:]])
    return done


def test_a_loop_may_run_within_a_loop(two_ranks):
    assert two_ranks.run(evaluates_within) == [
        [[outer, 5 + rank, 13, "", ""] for outer in (70, 60, 50)] for rank in range(2)]


def threads_left():
    """Those of loops, a moment after one has ended and one was broken off."""
    trained([cu_seqlens_of([5]), cu_seqlens_of([6])])
    for one in ours.plan_ahead([cu_seqlens_of([5]), cu_seqlens_of([6])], cu_seqlens=lambda batch: batch):
        step_of(one)
        break
    del one
    for _ in range(100):
        gc.collect()  # errors of earlier tests hold the loops in which they were raised
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("distca-plan")]
        if not left:
            break
        time.sleep(0.1)
    return left


def test_a_loop_that_has_ended_leaves_no_thread(two_ranks):
    assert two_ranks.run(threads_left) == [[], []]


def without_places(batch):
    try:
        for _ in ours.plan_ahead([batch]):
            return "it begins"
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("batch", [{"ids": 1}, (1, 2)])
def test_a_batch_that_does_not_say_where_documents_begin_is_named_before_the_first_step(two_ranks, batch):
    line = "a batch has no item cu_seq_lens_q: say where documents begin, plan_ahead(loader, lambda batch: ...)"
    assert two_ranks.run(without_places, batch) == [line, line]
