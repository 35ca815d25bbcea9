"""Context parallelism of Megatron-Core with distca.megatron, against one process with sdpa; what of it is refused."""

import functools
import types

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

import megatron_model as megatron  # noqa: E402
from attention_model import cu_seqlens_of, distance, sdpa  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from pairs import pairs_of  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distca as ours  # noqa: E402
import distca.megatron  # noqa: E402
from distca import _megatron_context as contexts  # noqa: E402

BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 6e-2}
LENGTHS = {  # of the documents, by DP rank and micro-batch
    "multiples": [[[16, 304, 8], [128], [80, 8]], [[40, 216], [8, 16], [64]]],
    "a long document": [[[1200], [8, 16], [24]], [[32], [8], [8, 8]]],
    "with room": [[[13, 301, 5], [129], [77, 3]], [[40, 211], [1, 7], [64]]],
    "an empty rank": [[[], [31], [13]], [[40, 211], [1, 7], [64]]],
    "rows": [[(2, 72), (1, 304), (3, 8)], [(1, 40), (2, 40), (1, 8)]],  # sequences and their length, not packed
}
WINDOWS = [None, (20, 0)]
SPLITS = {"DP 2": (1, 1, 2), "TP 2": (2, 1, 2), "PP 2": (1, 2, 2), "CP 4": (1, 1, 4)}  # of four ranks: TP, PP, CP


def batches_of(lengths, rank):
    return megatron.micro_batches(LENGTHS[lengths][rank], rank)


def compare(lengths, dtype, split=(1, 1, 2), window=None, **changes):
    tp, pp, cp = split
    differs, done = megatron.compare(lambda rank: batches_of(lengths, rank), tp, pp, dtype, cp, window_size=window,
                                     num_layers=2 * pp, **changes)
    worst = max(differs, key=differs.get)
    return differs[worst], worst, done


def recomputed(lengths):
    return compare(lengths, torch.float64, recompute_granularity="selective", recompute_modules=["core_attn"])


def check(found, dtype, micro_batches=3):
    for difference, name, done in found:
        assert difference <= BOUND[dtype], (name, difference)
        assert (done["forwards"], done["backwards"]) == (2 * micro_batches,) * 2
        assert done["plans"] <= micro_batches, "the layers of a forward share a plan"  # which an earlier test may have made
    assert sum(done["sent_bytes"] for *_, done in found) > 0


@pytest.mark.parametrize("lengths, dtype, window", pairs_of(lengths=[*LENGTHS], dtype=[*BOUND], window=WINDOWS), ids=str)
def test_two_context_parallel_ranks(two, lengths, dtype, window):
    check(two.run(compare, lengths, dtype, (1, 1, 2), window), dtype)


@pytest.mark.parametrize("lengths, split, window", pairs_of(lengths=[*LENGTHS], split=[*SPLITS], window=WINDOWS), ids=str)
def test_with_data_tensor_and_pipeline_parallel_ranks(four, lengths, split, window):
    check(four.run(compare, lengths, torch.float64, SPLITS[split], window), torch.float64)


@pytest.mark.parametrize("lengths", ["with room", "rows"])
def test_selective_recomputation(two, lengths):
    check(two.run(recomputed, lengths), torch.float64)


def model_and_cut(lengths):
    """The reference with gradients, its loss, DistCA's model, and this rank's part of the batches."""
    megatron.divide(1, 1, 2)
    batches = batches_of(lengths, 0)
    reference, loss = megatron.reference_of(megatron.config_of(torch.float64), batches)
    model = megatron.balanced_of(megatron.config_of(torch.float64, context_parallel_size=2), reference)
    return reference, loss, model, [batch.cut(dist.get_rank(), 2) for batch in batches]


def done():
    return ours.statistics(parallel_state.get_data_parallel_group(with_context_parallel=True))


def checkpointed(lengths):
    """Whole layers under torch.utils.checkpoint: the gradients' difference, and how often attention was computed."""
    reference, _, model, mine = model_and_cut(lengths)
    for layer in model.module.decoder.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    before = done().forwards
    megatron.play(model, mine)
    differs = [megatron.distance(p.main_grad, whole.grad) for p, whole, _ in megatron.shards(model.module, reference)]
    return max(differs), done().forwards - before


def test_checkpointing_that_is_not_reentrant(two):
    for difference, forwards in two.run(checkpointed, "with room"):
        assert difference < 1e-10 and forwards == 2 * 3
    two.tell(checkpointed, "rows")
    for rank in range(2):
        good, line = two.hear(rank)
        assert not good and "attention under torch.utils.checkpoint needs packed_seq_params" in line.splitlines()[0]


def evaluated(lengths, mode):
    """The loss with gradients off, before and behind a step of training with the same batches; what attention did."""
    reference, loss, model, mine = model_and_cut(lengths)
    share, losses = megatron.share_of_a_token(batches_of(lengths, 0)), []
    before = done()
    for trains in (False, True, False):
        with torch.enable_grad() if trains else mode():
            found = torch.tensor(megatron.play(model, mine, forward_only=not trains), dtype=torch.float64)
        dist.all_reduce(found)
        losses.append(abs(found.item() * share - loss) / loss)
    differs = [megatron.distance(p.main_grad, whole.grad) for p, whole, _ in megatron.shards(model.module, reference)]
    after = done()
    return max(losses + differs), after.forwards - before.forwards, after.backwards - before.backwards


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("lengths", ["with room", "rows"])
def test_all_ranks_compute_with_gradients_off(two, lengths, mode):
    for difference, forwards, backwards in two.run(evaluated, lengths, mode):
        assert difference < 1e-10 and (forwards, backwards) == (3 * 2 * 3, 2 * 3)


def core_attention(cp=2, groups=None, **changes):
    megatron.divide(1, 1, 2)
    config = megatron.config_of(torch.float64, context_parallel_size=cp, **changes)
    return distca.megatron.CoreAttention(
        config=config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self",
        pg_collection=groups or types.SimpleNamespace())


def heads(*shape, grad=False):
    return [torch.randn(*shape, 2, 8, dtype=torch.float64, requires_grad=grad) for _ in range(3)]


def packed(lengths, padded=None, **changes):
    places, room = cu_seqlens_of(lengths), cu_seqlens_of(padded) if padded else None
    usual = dict(qkv_format="thd", cu_seqlens_q=places, cu_seqlens_kv=places, cu_seqlens_q_padded=room,
                 cu_seqlens_kv_padded=room)
    return PackedSeqParams(**{**usual, **changes})


def room_behind_documents():
    """How far O of tokens is from that of one process, and the largest number of O and of a gradient in the room."""
    rank, lengths, padded = dist.get_rank(), [3, 0, 8, 1], [8, 0, 8, 4]
    torch.manual_seed(5)
    whole, inner = heads(20), torch.tensor([0, 1, 2, *range(8, 17)])  # those that are no room
    at = megatron.CutBatch(types.SimpleNamespace(
        lengths=padded, **dict.fromkeys(("tokens", "labels", "positions"), torch.arange(20)[None])), rank, 2).tokens[0]
    mine = [x[at].requires_grad_() for x in whole]
    o = core_attention()(*mine, None, packed_seq_params=packed(lengths, padded, cu_seqlens_kv=cu_seqlens_of(lengths)))
    (o * torch.randn_like(o)).sum().backward()
    want = torch.zeros(20, 16, dtype=torch.float64)
    want[inner] = sdpa(*(x[inner] for x in whole), cu_seqlens_of(lengths)).flatten(1)
    room = ~torch.isin(at, inner)
    return distance(o, want[at]), max(x[room].abs().max().item() for x in (o, *(x.grad for x in mine))), room.sum().item()


def test_room_behind_documents(two):
    for difference, most, rows in two.run(room_behind_documents):
        assert difference < 1e-12 and most == 0 and rows > 0


def masked():
    """The causal mask of whole sequences, this rank's rows of it, one of ones; and two that are none of these."""
    core, rank = core_attention(), dist.get_rank()
    inputs, causal = heads(4, 2), torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    o = core(*inputs, None)
    masks = causal, megatron.zigzag(causal, rank, 2, dim=2), torch.ones(1, 1, 4, 8, dtype=torch.bool)
    same = [torch.equal(core(*inputs, mask), o) for mask in masks]
    others = megatron.zigzag(causal, 1 - rank, 2, dim=2), causal[..., :4, :], causal[..., :4, :4]
    return same, [refusal(lambda mask=mask: core(*inputs, mask)) for mask in others]


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)


def test_masks_of_whole_sequences_and_of_the_rows_of_a_rank(two):
    for same, lines in two.run(masked):
        assert all(same)
        assert all(line.startswith("attention_mask is not the causal one: padding is not served") for line in lines)


def pieces():
    """Of two data-parallel groups: (document, begin, end) of this rank's, and whether they are kept as long as they hold."""
    megatron.divide(1, 1, 2)
    context = contexts.context_of(parallel_state.get_context_parallel_group(),
                                  parallel_state.get_data_parallel_group(with_context_parallel=True))
    cu_seqlens = cu_seqlens_of([8, 0, 12])
    first = contexts.pieces_of(cu_seqlens, context)
    is_kept = contexts.pieces_of(cu_seqlens, context) is first
    cu_seqlens[1:] = 4
    is_kept &= contexts.pieces_of(cu_seqlens, context).tolist() == [[first[0, 0], *at] for at in (
        [(0, 1), (3, 4)] if dist.get_rank(context.group) == 0 else [(1, 3)])]
    with torch.inference_mode():
        is_kept &= not contexts.pieces_of(cu_seqlens.clone(), context).is_inference()
    rows = [distca.megatron._cu_seqlens_of_rows(layer, 8, 2, context) for layer in (1, 2, 1)]
    is_kept &= rows[0] is rows[1] is not rows[2]
    return first.tolist(), is_kept, rows[0].tolist()


def test_documents_of_data_parallel_ranks_are_numbered_apart(four):
    (first, second, third, fourth), are_kept, rows = zip(*four.run(pieces))
    assert all(are_kept)
    number = third[0][0]
    assert number >= 2**32 and number % 2**32 == 0
    for here, there, at in ((first, third, [(0, 2), (6, 8), (0, 3), (9, 12)]), (second, fourth, [(2, 6), (3, 9)])):
        documents = [0, 0, 2, 2] if len(at) == 4 else [0, 2]
        assert here == [[document, *one] for document, one in zip(documents, at)]
        assert there == [[number + document, *one] for document, one in zip(documents, at)]
    assert rows[1] == [[0, 2, 6], [1, 2, 6]] and rows[3] == [[number, 2, 6], [number + 1, 2, 6]]


CALLS = {  # what is asked for -> (how, the line)
    "lengths": (lambda core: core(*heads(10), None, packed_seq_params=packed([8, 10])),
                "document 1 has 10 tokens under context_parallel_size = 2: a multiple of 4, with room behind it "
                "(cu_seqlens_q_padded) if need be"),
    "padded lengths": (lambda core: core(*heads(10), None, packed_seq_params=packed([8, 8], [8, 10])),
                       "document 1 has 10 tokens under context_parallel_size = 2: a multiple of 4, with room behind it "
                       "(cu_seqlens_q_padded) if need be"),
    "rows": (lambda core: core(*heads(5, 2), None),
             "sequences of 10 tokens under context_parallel_size = 2: a multiple of 4"),
    "rows that were not cut": (lambda core: core(*heads(8), None, packed_seq_params=packed([8])),
                               "the pieces of cu_seqlens_q have 4 tokens, q has 8"),
    "pieces": (lambda core: core(*heads(4), None, packed_seq_params=packed(
        [8], cu_seqlens_q=torch.tensor([[0, 0, 4]]), cu_seqlens_kv=None)),
        "packed_seq_params.cu_seqlens_q has shape [1, 3]: [documents + 1]"),
    "keys": (lambda core: core(*heads(4), None, packed_seq_params=packed([8], cu_seqlens_kv=cu_seqlens_of([4, 4]))),
             "cu_seqlens_q and cu_seqlens_kv differ: cross attention is not served"),
    "local_cp_size": (lambda core: core(*heads(4), None, packed_seq_params=packed([8], local_cp_size=1)),
                      "packed_seq_params.local_cp_size = 1 is not served: all documents are cut over "
                      "context_parallel_size = 2 ranks"),
    "cp_group": (lambda core: core(*heads(4), None, packed_seq_params=packed([8], cp_group=megatron.alone().cp)),
                 "packed_seq_params.cp_group is another group than that of the layer: None, or that one"),
    "cached keys": (lambda core: core(*heads(1, 1)[:1], *heads(4, 1)[1:], None, attn_mask_type=AttnMaskType.no_mask),
                    "a cache of keys under context_parallel_size = 2 is not served"),
    "interleaving": (lambda core: interleaved(core)(*heads(4, 1), None),
                     "virtual_pipeline_model_parallel_size = 2 needs packed_seq_params with qkv_format = 'thd'"),
}


def interleaved(core):
    core.config.virtual_pipeline_model_parallel_size = 2
    return core


def called(name):
    core = core_attention()
    before = done()
    return refusal(lambda: CALLS[name][0](core)), done() == before


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_may_not_ask(two, name):
    assert two.run(called, name) == [(CALLS[name][1], True)] * 2


def the_group_of_the_layer():
    group = parallel_state.get_context_parallel_group()
    core_attention()(*heads(4), None, packed_seq_params=packed([8], cp_group=group))


def test_the_group_of_the_layer_may_be_given(two):
    two.run(the_group_of_the_layer)


def grouped():
    """The lines about groups that do not fit, and whether a layer takes those that it is handed."""
    megatron.divide(1, 1, 2)
    both, alone = parallel_state.get_context_parallel_group(), megatron.alone().cp
    lines = [refusal(lambda: core_attention(cp=4)),
             refusal(lambda: core_attention(groups=types.SimpleNamespace(cp=alone))),
             refusal(lambda: core_attention(groups=types.SimpleNamespace(cp=both, dp_cp=alone)))]
    core = core_attention(groups=types.SimpleNamespace(cp=both, dp=alone, dp_cp=dist.group.WORLD))
    return lines, core.group is dist.group.WORLD and core.context.group is both


def test_groups(two):
    for rank, (lines, takes_them) in enumerate(two.run(grouped)):
        assert takes_them
        assert lines == [
            "context_parallel_size = 4, and the context-parallel group has 2 ranks: give pg_collection one as cp, or "
            "initialize_model_parallel",
            "context_parallel_size = 2, and the context-parallel group has 1 ranks: give pg_collection one as cp, or "
            "initialize_model_parallel",
            "the context-parallel group has ranks [0, 1], and that of data- and context-parallel ranks "
            f"(pg_collection.dp_cp) [{rank}]: all of the first and more"]
