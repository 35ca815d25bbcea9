"""Forwards that take turns: parity, order, and what belongs to one of them. The naive way fails where it is tried."""

import contextlib
import functools
import gc
import pathlib
import re
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, gradients, qkv, sdpa, tokens_of, worst
from test_attention_states import WRAPS
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import distca as ours
from distca import _attention, _ping_pong
from distca import _group as group

pytest.importorskip("greenlet")

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"
LENGTHS = [[[351, 20], [30, 90, 7]], [[90, 1], []], [[5], [260]]]  # [nano-batch][rank][document]
LAYERS = 3


def one_by_one(*bodies):
    return [body() for body in bodies]


def nano_batches(number, rank):
    """[number] pairs of a rank's tokens and cu_seqlens."""
    mine = [lengths[rank] for lengths in LENGTHS[:number]]
    return [(tokens_of(lengths, seed), cu_seqlens_of(lengths)) for seed, lengths in enumerate(mine)]


def gradients_of(model, batches, run):
    losses = run(*[functools.partial(model, *batch) for batch in batches])
    sum(losses).backward()
    return gradients(model)


def train(wrap, number):
    """The worst difference of a gradient to sdpa's, and whether the counts are those of forwards one by one."""
    batches = nano_batches(number, dist.get_rank())
    wanted = gradients_of(Model(sdpa, LAYERS), batches, one_by_one)
    counts = []
    for run, wraps in ((one_by_one, WRAPS["none"]), (ours.ping_pong, WRAPS[wrap])):
        before = group.statistics()
        found = gradients_of(Model(balanced, LAYERS, wraps), batches, run)
        after = group.statistics()
        counts.append((after.forwards - before.forwards, after.backwards - before.backwards,
                       after.sent_bytes - before.sent_bytes))
    assert counts[0][:2] == (number * LAYERS, number * LAYERS)
    return worst(found, wanted), counts[0] == counts[1]


@pytest.mark.parametrize("wrap, number", [*[(wrap, 2) for wrap in WRAPS], ("none", 1), ("keeps matrices", 3)])
def test_gradients_are_those_of_sdpa_and_nothing_is_sent_twice(two_ranks, wrap, number):
    for difference, counts_agree in two_ranks.run(train, wrap, number):
        assert difference < 1e-10 and counts_agree


@pytest.mark.full
@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_gradients_of_every_combination(two_ranks, wrap, number):
    test_gradients_are_those_of_sdpa_and_nothing_is_sent_twice(two_ranks, wrap, number)


def as_the_docs_say(program):
    rank = dist.get_rank()
    first, second = nano_batches(2, rank)
    model = Model(balanced, LAYERS)
    exec(program, {"distca": ours, "model": model, "first": first, "second": second})
    return worst(gradients(model), gradients_of(Model(sdpa, LAYERS), [first, second], one_by_one))


def test_the_program_of_the_docs_runs(two_ranks):
    (program,) = re.findall(r"```python\n([^`]*?distca.ping_pong[^`]*?)```", DOCS.read_text())
    assert max(two_ranks.run(as_the_docs_say, program)) < 1e-10


def test_forwards_take_turns_and_backwards_mirror_them(monkeypatch):
    forward, backward, layer_of = [], [], {}
    running = lambda: names.setdefault(_ping_pong._running.coroutine, len(names))  # noqa: E731
    names = {}

    def recorded(function, node_of):
        def record(*arguments, **keywords):
            result = function(*arguments, **keywords)
            body = running()
            layer = layer_of[body] = layer_of.get(body, -1) + (function is dispatch)
            step = f"{function.__name__} {body}.{layer}"
            forward.append(step)
            node_of(result).register_prehook(lambda _: backward.append(step))
            return result

        return record

    dispatch = _attention.dispatch
    for name in ("dispatch", "core_attention"):
        monkeypatch.setattr(_attention, name, recorded(getattr(_attention, name), lambda handle: handle._call.grad_fn))
    monkeypatch.setattr(_attention, "combine", recorded(_attention.combine, lambda o: o.grad_fn))
    gradients_of(Model(balanced, 2), nano_batches(2, 0), ours.ping_pong)
    assert forward == [
        "dispatch 0.0", "dispatch 1.0", "core_attention 0.0", "core_attention 1.0",
        "combine 0.0", "dispatch 0.1", "combine 1.0", "dispatch 1.1", "core_attention 0.1", "core_attention 1.1",
        "combine 0.1", "combine 1.1"]
    assert backward == forward[::-1]


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        return function(*arguments, **(keywords or {}))


@contextlib.contextmanager
def no_casts_kept():
    kept = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    yield
    torch.set_autocast_cache_enabled(kept)


def hooks_now():
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


STATES = {  # what a body enters, and what shows that it is entered
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.is_autocast_enabled("cpu")),
    "dtype of autocast": (lambda: torch.autocast("cpu", torch.float16),
                          lambda: torch.get_autocast_dtype("cpu") == torch.float16),
    "casts of autocast": (no_casts_kept, lambda: not torch.is_autocast_cache_enabled()),
    "no_grad": (torch.no_grad, lambda: not torch.is_grad_enabled()),
    "inference_mode": (torch.inference_mode, torch.is_inference_mode_enabled),
    "saved tensors": (lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
                      lambda: hooks_now() is not None),
    "dispatch mode": (Mode, lambda: _python_dispatch._get_current_dispatch_mode() is not None),
    "flag of dispatch modes": (Mode, _python_dispatch.is_in_torch_dispatch_mode),
    "default device": (lambda: torch.device("meta"), lambda: torch.empty(1).device.type == "meta"),
}


def seen_in_turns(state):
    """What two bodies see, of which one enters the state, and what is seen after them."""
    enters, is_entered = STATES[state]
    inputs = [qkv(8)[0] for _ in range(2)]

    def body(number, context):
        seen = [is_entered()]
        with context:
            for layer in range(2 + number):
                cu_seqlens = cu_seqlens_of([8]) if state != "default device" else torch.tensor([0, 8], device="cpu")
                ours.attention(*inputs[number], cu_seqlens, cu_seqlens)
                seen.append(is_entered())
        return [*seen, is_entered()]

    results = ours.ping_pong(lambda: body(0, enters()), lambda: body(1, contextlib.nullcontext()))
    return [*results, is_entered()]


@pytest.fixture
def naive(monkeypatch):
    """Called, it leaves bodies without a state of their own. What they leave behind is mended after the test."""
    before, swap = _ping_pong._ThreadState(), _ping_pong._ThreadState.swap
    yield lambda: monkeypatch.setattr(_ping_pong._ThreadState, "swap", lambda self: None)
    swap(before)


@pytest.mark.parametrize("state", STATES)
def test_state_stays_with_the_body_that_enters_it(naive, state):
    wanted = [[False, True, True, False], [False] * 5, False]
    assert seen_in_turns(state) == wanted
    naive()
    assert seen_in_turns(state) != wanted


def test_bodies_begin_with_the_state_of_the_caller():
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert ours.ping_pong(lambda: (torch.is_autocast_enabled("cpu"), torch.is_grad_enabled())) == [(True, False)]


@pytest.mark.parametrize("trains, dtype", [(False, torch.bfloat16), (True, torch.float16)])
def test_casts_of_weights_are_not_shared_with_a_body_that_casts_otherwise(trains, dtype):
    """Autocast keeps casts for the process: one of another type does not fit, one without a graph has no gradient."""
    weight = torch.nn.Parameter(torch.ones(8, 8))
    inputs, cu_seqlens = qkv(8)[0], cu_seqlens_of([8])

    def body(trains, dtype):
        with torch.set_grad_enabled(trains), torch.autocast("cpu", dtype):
            for _ in range(2):
                loss = (torch.ones(8, 8) @ weight).sum()
                ours.attention(*inputs, cu_seqlens, cu_seqlens)
        return loss

    ours.ping_pong(lambda: body(trains, dtype), lambda: body(True, torch.bfloat16))[1].backward()
    assert weight.grad is not None


def difference_to_sdpa(wrap):
    """Of this process alone: the worst gradient, or what is raised."""
    batches = nano_batches(2, 0)
    wanted = gradients_of(Model(sdpa, LAYERS), batches, one_by_one)
    try:
        return worst(gradients_of(Model(balanced, LAYERS, WRAPS[wrap]), batches, ours.ping_pong), wanted)
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("wrap", ["whole", "keeps matrices"])
def test_checkpointing_without_a_state_of_each_body_is_wrong(naive, wrap):
    assert difference_to_sdpa(wrap) < 1e-10
    naive()
    found = difference_to_sdpa(wrap)
    assert isinstance(found, str) or found > 1e-3


class Dropping(torch.nn.Module):
    """A layer before attention and dropout behind it."""

    def forward(self, q, k, v, cu_seqlens):
        return torch.nn.functional.dropout(balanced(q, k, v, cu_seqlens, layer=0), 0.5)


def gradients_with_dropout(is_checkpointed):
    layer, batches = Dropping(), [(*qkv(40, seed=seed)[0], cu_seqlens_of([40])) for seed in (1, 2)]
    call = (lambda *inputs: checkpoint(layer, *inputs, use_reentrant=False)) if is_checkpointed else layer
    torch.manual_seed(3)
    outputs = ours.ping_pong(*[functools.partial(call, *batch) for batch in batches])
    sum((o * o).sum() for o in outputs).backward()
    return [tensor.grad for batch in batches for tensor in batch[:3]]


def test_checkpointing_draws_the_same_random_numbers_again(monkeypatch):
    assert worst(gradients_with_dropout(True), gradients_with_dropout(False)) == 0
    swap = _ping_pong._ThreadState.swap

    def swap_all_but_random_numbers(state):
        numbers = torch.get_rng_state()
        swap(state)
        torch.set_rng_state(numbers)

    monkeypatch.setattr(_ping_pong._ThreadState, "swap", swap_all_but_random_numbers)
    assert worst(gradients_with_dropout(True), gradients_with_dropout(False)) > 1e-3


def half_in_another_state(state):
    """fp32: the worst difference of a gradient to that of the same bodies one by one."""
    rank, found = dist.get_rank(), []
    enters = STATES[state][0]
    for run in (one_by_one, ours.ping_pong):
        model = Model(balanced, LAYERS).float()

        def body(x, cu_seqlens, context):
            with context:
                return model(x.float(), cu_seqlens)

        contexts = [contextlib.nullcontext(), enters()]
        bodies = [functools.partial(body, *batch, one) for batch, one in zip(nano_batches(2, rank)[::-1], contexts)]
        losses = run(*bodies)
        assert losses[1].requires_grad == (state == "autocast")
        sum(loss.float() for loss in losses if loss.requires_grad).backward()
        found.append(gradients(model))
    return worst(*found)


@pytest.mark.parametrize("state", ["autocast", "no_grad", "inference_mode"])
def test_one_half_is_in_another_state(two_ranks, state):
    assert max(two_ranks.run(half_in_another_state, state)) < 1e-5


def under_ddp(wrap):
    rank = dist.get_rank()
    wanted = gradients_of(Model(sdpa, LAYERS), nano_batches(2, rank), one_by_one)
    for one in wanted:
        dist.all_reduce(one)
    model = torch.nn.parallel.DistributedDataParallel(Model(balanced, LAYERS, WRAPS[wrap]))
    return worst(gradients_of(model, nano_batches(2, rank), ours.ping_pong), [one / 2 for one in wanted])


@pytest.mark.parametrize("wrap", ["none", "keeps matrices"])
def test_ddp(two_ranks, wrap):
    assert max(two_ranks.run(under_ddp, wrap)) < 1e-10


def reentrant():
    model = Model(balanced, LAYERS, lambda layer, *inputs: checkpoint(layer, *inputs, use_reentrant=True))
    before = group.statistics()
    batches = [(x.requires_grad_(), cu_seqlens) for x, cu_seqlens in nano_batches(2, dist.get_rank())]
    with pytest.raises(ValueError) as raised:
        ours.ping_pong(*[functools.partial(model, *batch) for batch in batches])
    with torch.no_grad():  # it is not recomputed
        ours.ping_pong(*[functools.partial(model, *batch) for batch in batches])
    return str(raised.value), group.statistics() == before


def test_reentrant_checkpointing_is_refused_before_a_message(two_ranks):
    line = "attention of distca.ping_pong is under reentrant checkpointing: checkpoint with use_reentrant=False"
    assert two_ranks.run(reentrant) == [(line, True)] * 2


def raising(failing, at):
    """A body raises at a layer; the other one is ended, and the group works on."""
    ended, model = [], Model(balanced, LAYERS)

    def wrap(layer, *inputs):
        if _ping_pong._running.coroutine is running[failing] and layer.number == at:
            raise KeyError("the data")
        return layer(*inputs)

    running, model.wrap = [None, None], wrap

    def body(number, batch):
        running[number] = _ping_pong._running.coroutine
        try:
            return model(*batch)
        finally:
            ended.append(number)

    with pytest.raises(KeyError, match="the data"):
        ours.ping_pong(*[functools.partial(body, *one) for one in enumerate(nano_batches(2, dist.get_rank()))])
    assert _ping_pong._running.coroutine is None
    assert sorted(ended) == ([0] if at == 0 and failing == 0 else [0, 1])  # a body that has not begun does not begin
    return train("none", 2)[0]


@pytest.mark.parametrize("failing, at", [(0, 0), (1, 0), (0, 2), (1, 1)])
def test_what_a_body_raises_ends_the_others(two_ranks, failing, at):
    assert max(two_ranks.run(raising, failing, at)) < 1e-10


def test_results_come_in_order_and_a_body_may_ping_pong():
    inputs, cu_seqlens = qkv(8)[0], cu_seqlens_of([8])
    turns = []

    def body(name, attends):
        for _ in range(attends):
            turns.append(name)
            ours.attention(*inputs, cu_seqlens, cu_seqlens)
        return name

    inner = lambda: ours.ping_pong(lambda: body("c", 1), lambda: body("d", 1)) + [body("e", 1)]  # noqa: E731
    assert ours.ping_pong(lambda: body("a", 2), inner, lambda: "none") == ["a", ["c", "d", "e"], "none"]
    assert turns == ["a", "c", "d", "e", "a"]
    body("alone", 1)  # attention of no body gives way to nobody


def test_nothing_of_a_body_outlives_what_it_returned():
    x, cu_seqlens = nano_batches(1, 0)[0]
    model = Model(balanced, LAYERS)
    gc.collect()
    gc.disable()
    try:
        losses = ours.ping_pong(lambda: model(x, cu_seqlens), lambda: model(x, cu_seqlens))
        graphs = [weakref.ref(loss) for loss in losses]
        del losses
        assert [graph() for graph in graphs] == [None, None]
    finally:
        gc.enable()


def test_the_three_functions_do_not_give_way():
    inputs, cu_seqlens = qkv(8)[0], cu_seqlens_of([8])
    turns = []

    def body(name):
        turns.append(name)
        handle = ours.dispatch(*inputs, cu_seqlens, cu_seqlens)
        ours.combine(ours.core_attention(handle))
        turns.append(name)

    ours.ping_pong(lambda: body("a"), lambda: body("b"))
    assert turns == ["a", "a", "b", "b"]


def test_what_are_no_bodies_is_refused(monkeypatch):
    for bodies in ((), (None,)):
        with pytest.raises(ValueError, match="takes functions without arguments, one or more"):
            ours.ping_pong(*bodies)
    monkeypatch.setitem(sys.modules, "greenlet", None)
    with pytest.raises(ImportError, match="distca.ping_pong needs the package greenlet: pip install greenlet"):
        ours.ping_pong(lambda: None)
