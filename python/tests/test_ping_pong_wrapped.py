"""Ping-pong of models that FSDP2 has sharded or torch.compile has compiled."""

import functools

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, balanced, gradients, sdpa, worst
from test_attention_states import WRAPS
from test_ping_pong import LAYERS, gradients_of, nano_batches, one_by_one
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor

import distca as ours
from distca import _fsdp, _ping_pong

pytest.importorskip("greenlet")


class Headed(torch.nn.Module):
    """A model with layers that hold no attention: before and behind those that do."""

    def __init__(self, attend, wrap="none"):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.head = (torch.nn.Linear(32, 32, dtype=torch.float64) for _ in range(2))
        self.model = Model(attend, LAYERS, WRAPS[wrap])

    def forward(self, x, cu_seqlens):
        return torch.tanh(self.head(self.hidden(self.embed(x), cu_seqlens))).sum()

    def hidden(self, x, cu_seqlens):
        for layer in self.model.layers:
            x = self.model.wrap(layer, x, cu_seqlens)
        return x


class Twice(Headed):
    """Its layers come twice in a forward."""

    def hidden(self, x, cu_seqlens):
        return super().hidden(super().hidden(x, cu_seqlens), cu_seqlens)


def sharded(attend, reshards, wrap="none", kind=Headed, **keywords):
    model = kind(attend, wrap)
    for module in (model.embed, *model.model.layers, model.head):
        fully_shard(module, reshard_after_forward=reshards, **keywords)
    return fully_shard(model, reshard_after_forward=reshards, **keywords)


def gathered(model, batches, run):
    """The gradients, and how often parameters were gathered and gradients reduced. Two steps: the second counts."""
    counts, originals = {}, {}

    def counted(name):
        def count(*arguments, **keywords):
            counts[name] += 1
            return originals[name](*arguments, **keywords)

        return count

    for name in ("foreach_all_gather", "foreach_reduce"):
        originals[name] = getattr(_fsdp_param_group, name)
        setattr(_fsdp_param_group, name, counted(name))
    try:
        for _ in range(2):
            counts.update(dict.fromkeys(originals, 0))
            model.zero_grad()
            found = gradients_of(model, batches, run)
    finally:
        for name, original in originals.items():
            setattr(_fsdp_param_group, name, original)
    return [one.full_tensor() for one in found], counts


def train_sharded(reshards, wrap):
    """The worst difference of a gradient to sdpa's; the counts of ping-pong, and those of one forward alone."""
    batches = nano_batches(2, dist.get_rank())
    wanted = gradients_of(Headed(sdpa), batches, one_by_one)
    for one in wanted:
        dist.all_reduce(one)
    _, alone = gathered(sharded(balanced, reshards, wrap), batches[:1], one_by_one)
    model = sharded(balanced, reshards, wrap)
    found, counts = gathered(model, batches, ours.ping_pong)
    with torch.no_grad():
        losses = ours.ping_pong(*[functools.partial(model, *batch) for batch in batches])
        assert torch.allclose(torch.stack(losses), torch.stack([model(*batch) for batch in batches]), rtol=1e-10)
    stay_whole = {not isinstance(layer.out.weight, DTensor) for layer in model.model.layers}
    assert stay_whole == {reshards is False}
    assert not any({"pre_forward", "reshard"} & set(vars(group)) for group in _fsdp._groups())
    return worst(found, [one / 2 for one in wanted]), counts, alone


@pytest.mark.parametrize("reshards, wrap", [(True, "none"), (False, "none"), (None, "whole"), (True, "keeps matrices")])
def test_fsdp2_gathers_no_more_than_for_one_forward(two_ranks, reshards, wrap):
    for difference, counts, alone in two_ranks.run(train_sharded, reshards, wrap):
        assert difference < 1e-10
        assert counts["foreach_all_gather"] <= alone["foreach_all_gather"]
        assert counts["foreach_reduce"] == alone["foreach_reduce"] == LAYERS + 2


def sharded_by_fsdp1(strategy):
    """The gradients of ping-pong and, before and after it, those of one forward after the other."""
    batches = nano_batches(2, dist.get_rank())
    model, found = Headed(balanced), []
    shard = functools.partial(FullyShardedDataParallel, sharding_strategy=ShardingStrategy[strategy], use_orig_params=True,
                              device_id=torch.device("cpu"))
    model.model.layers = torch.nn.ModuleList([shard(layer) for layer in model.model.layers])
    model = shard(model)
    for run in (one_by_one, ours.ping_pong, one_by_one):
        model.zero_grad()
        try:
            sum(run(*[functools.partial(model, *batch) for batch in batches])).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])  # of its shards alone
        except ValueError as error:
            found.append(str(error))
    return found


def test_fsdp1_is_served_where_it_keeps_what_it_has_gathered(two_ranks):
    for found in two_ranks.run(sharded_by_fsdp1, "SHARD_GRAD_OP"):
        assert worst(found[1], found[0]) < 1e-10
    for before, refused, after in two_ranks.run(sharded_by_fsdp1, "FULL_SHARD"):
        assert refused.startswith("FSDP1 frees a layer's weights while another nano-batch or body is within: FSDP2")
        assert worst(after, before) < 1e-10


def one_half_without_gradients(first_trains):
    """The worst difference of a gradient to that of the half that trains."""
    batches = nano_batches(2, dist.get_rank())
    wanted = gradients_of(Headed(sdpa), batches[:1], one_by_one)
    for one in wanted:
        dist.all_reduce(one)
    model = sharded(balanced, True)

    def evaluated():
        with torch.no_grad():
            return model(*batches[1])

    bodies = [functools.partial(model, *batches[0]), evaluated]
    losses = ours.ping_pong(*(bodies if first_trains else bodies[::-1]))
    losses[0 if first_trains else 1].backward()
    return worst([one.full_tensor() for one in gradients(model)], [one / 2 for one in wanted])


@pytest.mark.parametrize("first_trains", [True, False])
def test_fsdp2_where_one_half_has_no_gradients(two_ranks, first_trains):
    assert max(two_ranks.run(one_half_without_gradients, first_trains)) < 1e-10


def layers_that_come_twice():
    batches = nano_batches(2, dist.get_rank())
    wanted = gradients_of(Twice(sdpa), batches, one_by_one)
    for one in wanted:
        dist.all_reduce(one)
    model = sharded(balanced, True, kind=Twice)
    return worst(gathered(model, batches, ours.ping_pong)[0], [one / 2 for one in wanted])


def test_fsdp2_where_layers_come_twice(two_ranks):
    assert max(two_ranks.run(layers_that_come_twice)) < 1e-10


def nested(*bodies):
    """The first two in a ping_pong that is a body of another one."""
    first, second, third = bodies
    return ours.ping_pong(lambda: sum(ours.ping_pong(first, second)), third)


def is_sharded(model):
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())


def in_ping_pong_of_a_body():
    """The worst difference of a gradient to sdpa's, and whether every layer is sharded after an evaluation."""
    batches = nano_batches(3, dist.get_rank())
    wanted = gradients_of(Headed(sdpa), batches, one_by_one)
    for one in wanted:
        dist.all_reduce(one)
    model = sharded(balanced, True)
    with torch.no_grad():
        nested(*[functools.partial(model, *batch) for batch in batches])
    after_evaluation = is_sharded(model)
    return worst(gathered(model, batches, nested)[0], [one / 2 for one in wanted]), after_evaluation


def test_fsdp2_where_a_body_calls_ping_pong(two_ranks):
    """A layer that stays gathered is not gathered again after an optimizer step: the next forward has old weights."""
    for difference, after_evaluation in two_ranks.run(in_ping_pong_of_a_body):
        assert difference < 1e-10 and after_evaluation


def where_a_body_raises():
    model = sharded(sdpa_in_turns, True)

    def fail(*_):
        raise KeyError("the data")

    model.model.layers[1].norm.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="the data"):
        ours.ping_pong(*[functools.partial(model, *batch) for batch in nano_batches(2, dist.get_rank())])
    return is_sharded(model)


def test_fsdp2_leaves_no_layer_gathered_where_a_body_raises(two_ranks):
    assert all(two_ranks.run(where_a_body_raises))


def mixed_precision():
    batches = nano_batches(2, dist.get_rank())
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    return worst(*[gathered(sharded(balanced, True, mp_policy=policy), batches, run)[0]
                   for run in (one_by_one, ours.ping_pong)])


def test_fsdp2_in_mixed_precision(two_ranks):
    assert max(two_ranks.run(mixed_precision)) < 1e-5


def sdpa_in_turns(q, k, v, cu_seqlens, layer=None):
    """It sends nothing, so that it may fail."""
    _ping_pong.give_way()
    o = sdpa(q, k, v, cu_seqlens)
    _ping_pong.give_way()
    return o


def naive():
    batches = nano_batches(2, dist.get_rank())
    wanted, _ = gathered(sharded(sdpa, True), batches, one_by_one)
    found, _ = gathered(sharded(sdpa_in_turns, True), batches, ours.ping_pong)
    groups, _fsdp._groups = _fsdp._groups, lambda: []
    try:
        spoilt = worst(gathered(sharded(sdpa_in_turns, True), batches, ours.ping_pong)[0], wanted)
    except RuntimeError as error:
        spoilt = str(error)
    finally:
        _fsdp._groups = groups
    return worst(found, wanted), spoilt


def test_fsdp2_left_to_itself_frees_weights_under_the_second_body(two_ranks):
    for difference, spoilt in two_ranks.run(naive):
        assert difference < 1e-10
        assert isinstance(spoilt, str) or not spoilt < 1e-3


def compiled(run, whole, wrap):
    """The worst difference of a gradient to sdpa's, and how many graphs were compiled."""
    torch._dynamo.reset()
    batches = nano_batches(2, dist.get_rank())
    wanted = gradients_of(Model(sdpa, 2), batches, one_by_one)
    model = Model(balanced, 2, WRAPS[wrap])
    torch._dynamo.utils.counters.clear()
    for module in [model] if whole else model.layers:
        module.compile(backend="aot_eager")
    return worst(gradients_of(model, batches, run), wanted), torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("run, whole, wrap", [
    (one_by_one, False, "none"), (ours.ping_pong, False, "none"), (ours.ping_pong, True, "none"),
    (ours.ping_pong, False, "whole")])
def test_attention_breaks_the_graph_of_a_compiled_model(two_ranks, run, whole, wrap):
    for difference, graphs in two_ranks.run(compiled, run, whole, wrap):
        assert difference < 1e-10
        assert graphs >= 2  # before attention and behind it
