"""Steps that are dealt over the ranks: loss, gradients and what goes back are those of one process."""

import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, gradients, sdpa, worst

import distca as ours
from distca._shard import warn_of_scheduler
from distca.plan import Shape

SHAPE = Shape(num_heads=4, num_kv_heads=2, head_dim=8, dtype="float64")
STEPS = {
    "odd": [[[301, 13, 5], [77], [129, 3]], [[40], [900], [1, 1]]],
    "one document": [[[1500], [], []], [[], [700], []]],
    "few tokens": [[[3], [1], [2]], [[], [5], []]],
    "nothing": [[[], [], []], [[64], [64], [64]]],
    "three steps": [[[31], [77, 200], [40]], [[90], [5], [5]], [[600, 3], [], [20]]],
}


def batch_of(lengths, seed):
    """A row of token numbers, which are its labels, too. Nothing of no documents."""
    if not lengths:
        return None
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(50, (1, sum(lengths)), generator=generator)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": ids, "labels": ids.masked_fill(positions == 0, -100), "position_ids": positions}


def loader_of(steps, rank):
    return [batch_of(of_ranks[rank], 10 * step + rank) for step, of_ranks in enumerate(steps)]


class Head(torch.nn.Module):
    """Token numbers in, the sum of squared distances from the targets out: a loss that knows where targets are."""

    def __init__(self, attend):
        super().__init__()
        self.model = Model(attend, layers=2)
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(50, 32, dtype=torch.float64)

    def each(self, ids, positions, seg):
        x = self.embedding(ids[0]) + torch.sin(positions[0, :, None] * torch.linspace(0.1, 1, 32, dtype=torch.float64))
        for layer in self.model.layers:
            x = layer(x, seg)
        return x.mean(1)

    def forward(self, ids, positions, targets, seg):
        has_one = targets[0] != -100
        return ((self.each(ids, positions, seg) - targets[0] / 50) ** 2)[has_one].sum()


def one_process(steps, ranks, accumulate):
    """[(sum of losses over targets, gradients)] of every `accumulate` steps."""
    found = []
    for first in range(0, len(steps), accumulate):
        model, loss, targets = Head(sdpa), 0, 0
        for step in range(first, min(first + accumulate, len(steps))):
            for rank in range(ranks):
                batch = batch_of(steps[step][rank], 10 * step + rank)
                if batch is None:
                    continue
                wanted = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
                places = torch.tensor([0, *steps[step][rank]]).cumsum(0)
                loss = loss + model(batch["input_ids"], batch["position_ids"], wanted, places)
                targets += int((wanted != -100).sum())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if targets:
            (loss / targets).backward()
        found.append((float(loss) / max(targets, 1), gradients(model)))
    return found


def train(steps, at_once, accumulate, reduction):
    """The worst difference of the losses and gradients of a rank's loop, which a mean or a sum reduces, to one process."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    loader = ours.shard(loader_of(steps, rank), shape=SHAPE, at_once=at_once, accumulate=accumulate, gradients=reduction)
    model, losses, differences, rows = Head(balanced), 0.0, [], []
    turns = ranks // (at_once or ranks)
    wanted = iter(one_process(steps, ranks, accumulate // turns))
    count = 0
    for batch in loader:
        loss = model(batch["input_ids"], batch["position_ids"], batch["shift_labels"], batch["pieces"]) / batch["num_items_in_batch"]
        loss.backward()
        losses, count = losses + loss.detach(), count + 1
        rows.append(batch["input_ids"].shape[1])
        if count % accumulate == 0 or count == len(loader):
            got = gradients(model)
            for value in (losses, *got):
                dist.all_reduce(value)
                value /= ranks if reduction == "mean" else 1
            loss, want = next(wanted)
            differences += [abs(losses.item() - loss), worst(got, want, least=1e-3)]
            model.zero_grad()
            losses = 0.0
    assert next(wanted, None) is None and len(loader) == len(steps) * turns == count
    return max(differences), rows


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("at_once, accumulate, reduction", [(None, 1, "mean"), (None, 2, "sum"), (1, 6, "mean")], ids=str)
def test_loss_and_gradients_are_those_of_one_process(three_ranks, steps, at_once, accumulate, reduction):
    found = three_ranks.run(train, STEPS[steps], at_once, accumulate, reduction)
    assert max(difference for difference, _ in found) < 1e-10, found
    for rows in zip(*(rows for _, rows in found)):
        assert max(rows) - min(rows) <= 2 * 128, "rows of a step are even"


def test_four_ranks_in_turns_of_two(four):
    steps = [[*of_ranks, [250]] for of_ranks in STEPS["odd"]]
    assert max(difference for difference, _ in four.run(train, steps, 2, 2, "mean")) < 1e-10


@pytest.mark.full
@pytest.mark.parametrize("at_once, accumulate", [(None, 1), (4, 2), (1, 8)])
def test_eight_ranks(eight, at_once, accumulate):
    steps = [[*of_ranks, [250], [], [700, 2], [1], [33]] for of_ranks in STEPS["odd"]]
    assert max(difference for difference, _ in eight.run(train, steps, at_once, accumulate, "mean")) < 1e-10


def whole_again(steps):
    """The worst difference of a loss of whole documents, by rows that go back to who gave them, and of its gradients."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    differences = []
    for step, batch in enumerate(ours.shard(loader_of(steps, rank), shape=SHAPE)):
        model, one = Head(balanced), Head(sdpa)
        values = model.each(batch["input_ids"], batch["position_ids"], batch["pieces"])
        mine = ours.unshard(values[None], batch)[0]
        of_documents = [part.sum() ** 2 for part in mine.split(steps[step][rank])]
        (sum(of_documents) if of_documents else mine.sum()).backward()
        got = gradients(model)
        for gradient in got:
            dist.all_reduce(gradient)
        for parameter in one.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for other in range(ranks):
            theirs = batch_of(steps[step][other], 10 * step + other)
            if theirs is None:
                continue
            places = torch.tensor([0, *steps[step][other]]).cumsum(0)
            each = one.each(theirs["input_ids"], theirs["position_ids"], places)
            if other == rank:
                differences.append((mine - each).abs().max().item())
            sum(part.sum() ** 2 for part in each.split(steps[step][other])).backward()
        differences.append(worst(got, gradients(one), least=1e-3))
    return max(differences)


def same_batches():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in ours.shard([batch_of([300], 1), batch_of([40], 2)], shape=SHAPE):
            pass
    return [str(warning.message) for warning in caught]


def test_a_loader_that_is_not_divided_is_named_once(two_ranks):
    for found in two_ranks.run(same_batches):
        assert len(found) == 1 and found[0].startswith("ranks 0 and 1 gave the same tokens: divide the loader among the ranks")


def test_what_goes_back_has_no_second_derivative():
    (batch,) = ours.shard([batch_of([300], 1)], shape=SHAPE)
    values = torch.ones(1, 300, requires_grad=True)
    (gradient,) = torch.autograd.grad((ours.unshard(values, batch) ** 3).sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("steps", ["odd", "one document"])
def test_rows_go_back_to_who_gave_them_with_gradients(three_ranks, steps):
    assert max(three_ranks.run(whole_again, STEPS[steps])) < 1e-10


def seen(batches):
    """The items of the step that this rank gets."""
    loader = ours.shard([batches[dist.get_rank()]], shape=SHAPE)
    return [{name: value.tolist() for name, value in batch.items() if isinstance(value, torch.Tensor)} for batch in loader]


def test_what_else_has_an_integer_for_each_token_is_dealt(two_ranks):
    def batch(first):
        ids = torch.arange(first, first + 300)[None]
        return {"input_ids": ids, "kinds": ids % 7, "attention_mask": torch.ones_like(ids)}

    found = two_ranks.run(seen, [batch(0), batch(1000)])
    rows = sorted(row for (got,) in found for row in zip(got["input_ids"][0], got["kinds"][0], got["position_ids"][0]))
    assert rows == [(first + i, (first + i) % 7, i) for first in (0, 1000) for i in range(300)]
    assert all("shift_labels" not in got and "attention_mask" not in got for (got,) in found)


def reported(linear_work):
    """What a new group says of two steps, as text, too."""
    new = dist.new_group()
    before = ours.report(new)
    batches = [batch_of([600, 100], 1), batch_of([100, 100], 2)]
    for batch in ours.shard([batches[dist.get_rank()]] * 2, shape=SHAPE, group=new):
        for number in range(2):
            q = torch.randn(batch["input_ids"].shape[1], 4, 8, requires_grad=True)
            ours.attention(q, q[:, :2], q[:, :2], batch["pieces"], batch["pieces"], layer=number, group=new,
                           linear_work=linear_work).sum().backward()
    found = ours.report(new)
    return before.calls, found.calls, found.before, found.after, found.sent_bytes, str(found)


def test_a_report_says_what_balance_gives(two_ranks):
    for none, calls, before, after, sent_bytes, text in two_ranks.run(reported, 0):
        pairs = [600 * 601 + 100 * 101, 2 * 100 * 101]
        assert none == 0 and calls == 4 and abs(before - 2 * pairs[0] / sum(pairs)) < 1e-12 and 1 <= after < 1.1 < before
        assert sent_bytes > 0 and text.startswith("4 calls of attention: the busiest rank would have 1.90 times the mean, and has")
    assert str(ours.report()) == "no attention has been balanced yet"


def test_a_report_counts_linear_work_where_it_is_evened_out_too(two_ranks):
    for _, _, before, after, _, _ in two_ranks.run(reported, 10**9):
        assert 1.8 < before < 2 and 1 <= after < 1.2  # tokens are dealt to within a block


def reported_of(steps, linear_work):
    """What it says after these steps, each the lengths of the ranks' documents."""
    new = dist.new_group()
    for lengths in steps:
        mine = lengths[dist.get_rank()]
        cu_seqlens = torch.tensor([0, *mine]).cumsum(0).to(torch.int32)
        q = torch.randn(sum(mine), 4, 8, requires_grad=True)
        ours.attention(q, q[:, :2], q[:, :2], cu_seqlens, cu_seqlens, group=new, linear_work=linear_work).sum().backward()
    return ours.report(new)


def test_a_report_weighs_steps_by_their_work(two_ranks):
    def pairs(length):
        return length * (length + 1) / 2

    for found in two_ranks.run(reported_of, [[[1024], [128]], [[10], [10]]], 0):
        assert abs(found.before - (pairs(1024) + pairs(10)) / ((pairs(1024) + pairs(128)) / 2 + pairs(10))) < 1e-9
        assert 1 <= found.after < 1.1
    flops, work = 7 * 4 * 16, 10_000  # of a pair; multiply-adds of a token
    for found in two_ranks.run(reported_of, [[[1024], [512, 512]]], work):
        most, least = flops * pairs(1024) + 6 * work * 1024, 2 * flops * pairs(512) + 6 * work * 1024
        assert abs(found.before - 2 * most / (most + least)) < 1e-9 and found.after < 1.05


def asked_alone(module):
    """What rank 0 alone asks of a group that no attention has used, and of a module."""
    new = dist.new_group()
    if dist.get_rank() > 0:
        return None
    with pytest.raises(ValueError, match="a Linear is no process group: give the group whose ranks share its attention"):
        ours.report(module)
    ours.synchronize(new)
    return ours.report(new).calls, ours.statistics(new).forwards


def test_one_rank_alone_asks_of_a_group_that_is_not_open(two_ranks):
    assert two_ranks.run(asked_alone, torch.nn.Linear(2, 2))[0] == (0, 0)


def refused(batches, ends=()):
    class Failing:
        def __iter__(self):
            yield from batches[dist.get_rank()]
            if dist.get_rank() in ends:
                raise OSError("the disk is gone")

    try:
        for _ in ours.shard(Failing(), shape=SHAPE):
            pass
    except (OSError, RuntimeError) as error:
        return str(error).splitlines()[0]


IDS = torch.zeros(1, 5, dtype=torch.int64)
WORDS, NEXT = torch.tensor([[4, 2, 7, 7, 1, 3]]), torch.tensor([[2, 7, 7, 1, 3, -100]])


@pytest.mark.parametrize("of_ranks, ends, lines", [
    ([[{"input_ids": IDS}], []], (), ["the loader of rank 1 ended after 0 batches, that of rank 0 goes on"] * 2),
    ([[{"input_ids": IDS}], [{"input_ids": IDS, "labels": IDS}]], (),
     ["rank 1 gives input_ids, shift_labels, rank 0 input_ids: the batches of all ranks have the same items"] * 2),
    ([[{"input_ids": IDS, "pixel_values": torch.zeros(1, 3, 4, 4)}], [None]], (),
     ["rank 0: pixel_values has no integer for each token of input_ids [1, 5]: it cannot be dealt over ranks"] * 2),
    ([[{"input_ids": IDS, "attention_mask": IDS}], [None]], (),
     ["rank 0: attention_mask is not all ones: a batch that is dealt over ranks is packed (DataCollatorWithFlattening)"] * 2),
    ([[{"input_ids": WORDS, "labels": NEXT}], [None]], (),
     ["rank 0: labels are the next tokens already, and shard shifts labels: call them shift_labels"] * 2),
    ([[{"input_ids": WORDS.repeat(1, 2), "labels": NEXT.repeat(1, 2).masked_fill(NEXT.repeat(1, 2) == -100, 9)}], [None]], (),
     ["rank 0: labels are the next tokens already"] * 2),  # with an end of each document
    ([[{"input_ids": WORDS[0]}], [None]], (),
     ["rank 0: a batch that is dealt over ranks has input_ids [rows, tokens], this one has [6]"] * 2),
    ([[{"input_ids": WORDS, "distca_dealt": 1}], [None]], (),
     ["rank 0: this batch is dealt already: give the loader itself, not the steps that shard made of it"] * 2),
    ([[(1, 2)], [None]], (), ["rank 0: a batch that is dealt over ranks is a dictionary, not of type tuple"] * 2),
    *(([[{"input_ids": IDS, "labels": labels}], [None]], (),
       ["rank 0: labels have no integer for each token of input_ids [1, 5]"] * 2) for labels in ([1], IDS[0], IDS.double())),
    ([[{"inputs_embeds": torch.zeros(1, 5, 4)}], [None]], (), ["rank 0: a batch that is dealt over ranks has input_ids"] * 2),
    ([[], []], (1,), ["rank 1: its loader failed: the disk is gone", "the disk is gone"]),
])
def test_what_cannot_be_dealt_is_named_on_all_ranks(two_ranks, of_ranks, ends, lines):
    for found, line in zip(two_ranks.run(refused, of_ranks, ends), lines, strict=True):
        assert found.startswith(line), found


@pytest.mark.parametrize("arguments, line", [
    ({"at_once": 2}, "at_once = 2: how many of 1 ranks' batches make a step, a divisor of it"),
    ({"accumulate": 0}, "accumulate = 0: steps whose gradients are added up, 1 or more"),
    ({"gradients": "max"}, "gradients = 'max': 'mean' or 'sum'"),
])
def test_wrong_arguments_get_one_line(arguments, line):
    with pytest.raises(ValueError) as raised:
        ours.shard([], shape=SHAPE, **arguments)
    assert str(raised.value) == line


def test_a_prepared_scheduler_is_warned_of_where_batches_come_in_turns():
    loader = SimpleNamespace(gradient_state=None)
    with pytest.warns(UserWarning, match="at_once = 1: if accelerator.prepare has a learning-rate scheduler"):
        warn_of_scheduler(SimpleNamespace(at_once=1, ranks=2), loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_scheduler(SimpleNamespace(at_once=2, ranks=2), loader)
        warn_of_scheduler(SimpleNamespace(at_once=1, ranks=2), [])


def test_one_process_is_dealt_its_own_batch():
    batch = batch_of([5, 9], 0)
    (found,) = ours.shard([batch], shape=SHAPE)
    assert found["input_ids"].equal(batch["input_ids"]) and found["pieces"].tolist() == [[0, 0, 5], [1, 0, 9]]
    assert found["num_items_in_batch"] == 12
    assert ours.unshard(found["position_ids"], found).equal(batch["position_ids"])
    with pytest.raises(ValueError, match=r"values have shape \[1, 3\]: \[1, 14, ...\], a row for each token"):
        ours.unshard(torch.zeros(1, 3), found)


def test_flags_stay_flags():
    batch = batch_of([5, 9], 0)
    batch["chosen"] = batch["input_ids"] % 2 == 0
    (found,) = ours.shard([batch], shape=SHAPE)
    assert found["chosen"].dtype == torch.bool and found["chosen"].equal(batch["chosen"])


def test_a_head_of_any_size_is_dealt():
    (found,) = ours.shard([batch_of([5, 9], 0)], shape=Shape(4, 2, 100))
    assert found["input_ids"].shape == (1, 14)


def test_an_epoch_reaches_the_sampler_of_a_loader():
    sampler = torch.utils.data.DistributedSampler(range(8), num_replicas=1, rank=0)
    loader = torch.utils.data.DataLoader([torch.zeros(3, dtype=torch.int64)] * 8, sampler=sampler,
                                         collate_fn=lambda samples: {"input_ids": torch.stack(samples)})
    ours.shard(loader, shape=SHAPE).set_epoch(3)
    assert sampler.epoch == 3


def test_a_step_that_is_dealt_is_not_verified():
    (found,) = ours.shard([batch_of([5, 9], 0)], shape=SHAPE)
    with pytest.raises(ValueError, match="this one is dealt over ranks: give a batch of the loader$"):
        ours.verify(torch.nn.Linear(2, 2), found)
