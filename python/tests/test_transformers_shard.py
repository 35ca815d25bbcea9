"""A step of random Transformers models whose documents are dealt over ranks, against one process with sdpa."""

import math

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers_model import (  # noqa: E402
    autocast,
    checkpoint,
    documents_of,
    full_gradients,
    keep_fp64,
    make,
    packed,
    reference,
    worst_gradient,
    wrap,
)

import distca.transformers  # noqa: E402

LENGTHS = {
    "odd": [[13, 301, 5, 77], [129, 3], [211], [64]],
    "one document": [[1200], [], [], []],
    "few tokens": [[7], [2], [], []],
}


def loss_of(model, batch, precision):
    if precision != "fp64":
        return model(**batch).loss
    targets, items = batch["shift_labels"], batch["num_items_in_batch"]
    logits = model(**{name: value for name, value in batch.items() if name not in ("labels", "shift_labels")}).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / items


def step(kind, precision, nano_batches, parallel, checkpointing, lengths, at_once=None, accumulate=1):
    """(difference of the loss, worst difference of a gradient, rows of this rank, bytes sent) to one process."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    dtype = torch.float64 if precision == "fp64" else torch.float32
    documents = [documents_of(lengths[r] if r < len(lengths) else [], seed=r) for r in range(ranks)]
    items = sum(max(len(document) - 1, 0) for of_rank in documents for document in of_rank)
    one, model = make(kind, dtype), make(kind, dtype)
    if precision == "fp64":
        keep_fp64(one), keep_fp64(model)
    want_loss, want = reference(one, [document for of_rank in documents for document in of_rank], items)
    distca.transformers.attach(model, nano_batches=nano_batches)
    checkpoint(model, checkpointing)
    wrapped, total, rows, before = wrap(model, parallel), 0.0, [], distca.statistics().sent_bytes
    given = packed(documents[rank]) if documents[rank] else None
    for batch in distca.transformers.shard([given], model, at_once=at_once, accumulate=accumulate):
        with autocast(precision):
            loss = loss_of(wrapped, batch, precision)
        loss.backward()
        total, rows = total + loss.detach().double(), [*rows, batch["input_ids"].shape[1]]
    dist.all_reduce(total)
    return (abs(total.item() / ranks - want_loss) / want_loss, worst_gradient(full_gradients(wrapped), want), rows,
            distca.statistics().sent_bytes - before)


def check(ranks, precision, lengths, *how):
    found = ranks.run(step, how[0], precision, *how[1:4], LENGTHS[lengths], *how[4:])
    of_loss, of_gradients = {"fp64": (1e-10, 1e-10), "fp32": (1e-5, 1e-5), "autocast": (2e-3, 1e-1)}[precision]
    assert max(loss for loss, *_ in found) < of_loss, found
    assert max(gradient for _, gradient, *_ in found) < of_gradients, found
    if lengths != "few tokens":
        assert sum(sent for *_, sent in found) > 0, "nothing was balanced"
        for rows in zip(*(rows for _, _, rows, _ in found)):
            assert max(rows) - min(rows) <= 2 * 128 * how[1], found


@pytest.mark.parametrize("precision, lengths, how", [
    ("fp64", "odd", ("llama", 1, "ddp", "none")),
    ("fp64", "one document", ("qwen3", 1, "ddp", "whole")),
    ("fp64", "odd", ("mistral", 2, "fsdp2", "none")),
    ("fp64", "one document", ("ministral", 2, "ddp", "selective")),
    ("fp32", "few tokens", ("llama", 2, "ddp", "none")),
    ("autocast", "odd", ("llama", 2, "fsdp2", "whole")),
    ("fp64", "odd", ("llama", 2, "ddp", "none", 1, 3)),
    ("fp64", "odd", ("llama", 1, "fsdp2", "whole", 1, 3)),
], ids=str)
def test_loss_and_gradients_are_those_of_one_process(three_ranks, precision, lengths, how):
    check(three_ranks, precision, lengths, *how)


MORE_RANKS = [
    ("fp64", "odd", ("qwen2", 1, "fsdp2", "none")),
    ("fp64", "one document", ("llama", 2, "ddp", "whole", 2, 2)),
]


@pytest.mark.parametrize("precision, lengths, how", MORE_RANKS, ids=str)
def test_four_ranks(four, precision, lengths, how):
    check(four, precision, lengths, *how)


@pytest.mark.full
@pytest.mark.parametrize("precision, lengths, how", [
    *MORE_RANKS,
    ("fp32", "odd", ("mistral", 2, "ddp", "selective")),
    ("autocast", "odd", ("llama", 1, "fsdp2", "whole")),
    ("fp64", "odd", ("llama", 2, "fsdp2", "none", 1, 8)),
], ids=str)
def test_eight_ranks(eight, precision, lengths, how):
    check(eight, precision, lengths, *how)


@pytest.mark.full
def test_evaluation_is_the_same_on_eight_ranks(eight):
    for (loss, targets), (want, wanted_targets), _ in eight.run(evaluation, LENGTHS["odd"], torch.float64, 1):
        assert abs(loss - want) <= 1e-12 * want and targets == wanted_targets


def evaluation(lengths, dtype, batches):
    """(loss, targets) of `evaluate`, each rank's documents in so many batches; and of one process, a document at a time."""
    ranks, rank = dist.get_world_size() if dist.is_initialized() else 1, dist.get_rank() if dist.is_initialized() else 0
    documents = [document for r, of_rank in enumerate(lengths) for document in documents_of(of_rank, seed=r)]
    model, one = make("mistral", dtype).eval(), make("mistral", dtype).eval()
    if dtype == torch.float64:
        keep_fp64(model), keep_fp64(one)
    distca.transformers.attach(model, nano_batches=2)
    mine = documents[rank::ranks]
    loader = [packed(mine[first::batches]) for first in range(batches) if mine[first::batches]]
    found = distca.transformers.evaluate(model, loader)
    total, count = 0.0, 0
    with torch.no_grad():
        for document in documents:
            logits = one(document[None], use_cache=False).logits[0]
            losses = torch.nn.functional.cross_entropy(logits[:-1], document[1:], reduction="none")
            total, count = total + losses.sum(dtype=torch.float64).item(), count + len(document) - 1
    return (found.loss, found.targets), (total / count, count), f"perplexity={math.exp(found.loss)}" in repr(found)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_evaluation_is_the_same_for_any_number_of_ranks(two_ranks, three_ranks, four, dtype, bound):
    lengths = LENGTHS["odd"]
    found = [evaluation(lengths, dtype, 1)]
    for ranks, batches in ((two_ranks, 2), (three_ranks, 1), (four, 2)):
        found += ranks.run(evaluation, lengths, dtype, batches)
    for (loss, targets), (want, wanted_targets), has_perplexity in found:
        assert abs(loss - want) <= bound * want and targets == wanted_targets and has_perplexity, found


def without_the_check(kind, changes):
    """The worst difference of a gradient to one process where `shard` refuses nothing."""
    from distca import _transformers_shard

    _transformers_shard._OF_ROWS = set()
    documents = [documents_of([1200], seed=1), []]
    one, model = make(kind, torch.float64, **changes), make(kind, torch.float64, **changes)
    keep_fp64(one), keep_fp64(model)
    want = reference(one, documents[0], 1199)[1]
    distca.transformers.attach(model)
    wrapped, rank = wrap(model, "ddp"), dist.get_rank()
    for batch in distca.transformers.shard([packed(documents[rank]) if documents[rank] else None], model):
        loss_of(wrapped, batch, "fp64").backward()
    return worst_gradient(full_gradients(wrapped), want)


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}, "max_position_embeddings": 256}


def test_rope_that_follows_a_ranks_own_rows_is_refused_for_a_reason(two_ranks):
    model = make("llama", **DYNAMIC)
    distca.transformers.attach(model)
    with pytest.raises(ValueError, match="LlamaForCausalLM has RoPE of kind dynamic, whose frequencies follow the largest "
                                         "position of a rank's own rows"):
        distca.transformers.shard([], model)
    assert max(two_ranks.run(without_the_check, "llama", DYNAMIC)) > 0.01


def test_what_mixes_tokens_by_something_else_is_refused():
    model = make("llama")
    model.model.layers[0].mixer = torch.nn.Conv1d(32, 32, 3)
    distca.transformers.attach(model)
    with pytest.raises(ValueError, match="mixes tokens by model.layers.0.mixer, not by attention alone"):
        distca.transformers.shard([], model)


@pytest.mark.parametrize("mixes", [lambda x: x.roll(1, 1), lambda x: x - x.mean(1, keepdim=True), lambda x: x.cumsum(1)])
def test_a_mixer_that_nobody_knows_is_found(mixes):
    model = make("llama")
    mlp = model.model.layers[1].mlp
    inner = mlp.forward
    mlp.forward = lambda x: inner(mixes(x))
    distca.transformers.attach(model)
    with pytest.raises(ValueError, match="LlamaForCausalLM mixes tokens by something else than attention"):
        distca.transformers.shard([], model)
    assert model.training and mlp.training
    mlp.forward = inner
    distca.transformers.shard([], model)


def test_a_model_that_is_not_attached_is_refused():
    with pytest.raises(ValueError, match="this LlamaForCausalLM is not attached"):
        distca.transformers.shard([], make("llama"))


def test_another_call_than_what_was_dealt_is_refused():
    model = make("llama")
    distca.transformers.attach(model)
    (batch,) = distca.transformers.shard([packed(documents_of([9, 4]))], model)
    with pytest.raises(ValueError, match=r"the model is called with \[1, 5\] tokens, and shard dealt another batch"):
        model(**{**batch, "input_ids": batch["input_ids"][:, :5]})
    with pytest.raises(ValueError, match="the batch of a step has position_ids, and the model is called without them"):
        model(**{name: value for name, value in batch.items() if name != "position_ids"})
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attention of the model is sdpa, which knows no pieces of documents"):
        model(**batch)


def half_a_batch(copied, trains):
    model = make("llama")
    distca.transformers.attach(model)
    try:
        for batch in distca.transformers.shard([packed(documents_of([500], seed=dist.get_rank()))], model):
            with torch.set_grad_enabled(trains):
                model(**{name: value.clone() if copied else value for name, value in batch.items() if isinstance(value, torch.Tensor)})
    except (RuntimeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize("copied, trains, line", [
    (False, True, "these input_ids are of a step that shard has dealt, whose documents lie on many ranks"),
    (False, False, "these input_ids are of a step that shard has dealt, whose documents lie on many ranks"),
    (True, True, "a batch of distca.transformers.shard has an item distca_dealt, and attention was called without it"),
])
def test_a_batch_without_its_pieces_is_found(two_ranks, copied, trains, line):
    assert all(found.startswith(line) for found in two_ranks.run(half_a_batch, copied, trains))


def test_a_loss_of_routers_is_refused_in_a_call_too():
    model = make("llama")
    distca.transformers.attach(model)
    (batch,) = distca.transformers.shard([packed(documents_of([9, 4]))], model)
    with pytest.raises(ValueError, match="output_router_logits: the loss of routers is a mean over a rank's rows"):
        model(**batch, output_router_logits=True)


def test_documents_whose_rope_would_follow_a_nano_batch_are_refused():
    one, two = make("llama", **DYNAMIC), make("llama", **DYNAMIC)
    distca.transformers.attach(one)
    distca.transformers.attach(two, nano_batches=2)
    short = packed(documents_of([256, 20]))
    assert torch.allclose(one(**short).logits, two(**short).logits, atol=1e-5)
    with pytest.raises(ValueError, match="a document has 300 tokens, and beyond 256, the frequencies of this model's RoPE follow"):
        two(**packed(documents_of([300, 20])))


def test_ranks_of_tensor_parallelism_are_dealt_no_tokens_of_their_own():
    model = make("llama")
    distca.transformers.attach(model)
    model._tp_size = 2
    with pytest.raises(ValueError, match="LlamaForCausalLM is divided by tensor parallelism"):
        distca.transformers.shard([], model)


@pytest.mark.parametrize("call", [lambda model: distca.transformers.shard([], model), distca.transformers.cu_seqlens_of,
                                  distca.transformers.detach, lambda model: distca.transformers.evaluate(model, [])])
def test_what_wraps_a_model_is_refused(call):
    with pytest.raises(ValueError, match="Sequential is no model of Transformers: give the model itself, not what wraps it"):
        call(torch.nn.Sequential(make("llama")))
