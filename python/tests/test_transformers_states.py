"""distca.transformers: rows of a batch, empty ranks, evaluation, generation, saving, and what is refused."""

import copy
import functools
import json
import sys
import types

import pytest
import torch

transformers = pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from transformers_model import (  # noqa: E402
    documents_of,
    exact_loss,
    full_gradients,
    keep_fp64,
    make,
    packed,
    worst_gradient,
)

import distca.transformers  # noqa: E402
from distca._group import name_of  # noqa: E402
from distca._nano_batches import deal, find_documents  # noqa: E402
from distca._ops import ops  # noqa: E402
from distca._versions import require  # noqa: E402

DOCUMENTS = [[40, 7, 1, 19], [5, 3]]


def attached(nano_batches=1, kind="llama", dtype=torch.float64, **changes):
    model = make(kind, dtype, **changes)
    keep_fp64(model)
    distca.transformers.attach(model, nano_batches=nano_batches)
    return model


def plain(kind="llama", dtype=torch.float64):
    model = make(kind, dtype, use_cache=False)  # with a cache, sdpa does not see where documents begin
    keep_fp64(model)
    return model


def rows(number, tokens, seed=1):
    return torch.stack(documents_of([tokens] * number, seed))


@pytest.mark.parametrize("nano_batches", [1, 2])
@pytest.mark.parametrize("mask", [False, True])
def test_rows_of_a_batch_are_documents(nano_batches, mask):
    batch = {"input_ids": rows(3, 17), "labels": rows(3, 17)}
    batch["labels"][1, 4] = -100
    results = []
    for model in (plain(), attached(nano_batches)):
        given = {**batch, "attention_mask": torch.ones(3, 17, dtype=torch.int64)} if mask else batch
        out = model(**given, output_hidden_states=True)
        exact_loss(out.logits, batch["labels"], 3).backward()
        results.append((out, full_gradients(model)))
    (want, want_gradients), (got, gradients) = results
    assert got.logits.shape == (3, 17, 64) and worst_gradient(gradients, want_gradients) < 1e-10
    assert (got.logits - want.logits).abs().max() < 1e-12
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(got.hidden_states, want.hidden_states, strict=True))
    assert abs(got.loss - want.loss) < 1e-6 and got.past_key_values is None


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("lengths", [[40, 7, 1, 19], [9, 30, 11, 9], [12]])
def test_nano_batches_have_the_outputs_of_the_batch(lengths, across):
    """`across`: the last token of a document predicts the first of the next, because the caller's labels say so."""
    batch = packed(documents_of(lengths))
    if across:
        batch["labels"] = batch["input_ids"].clone()
    one, two = (attached(nano_batches, dtype=torch.float32) for nano_batches in (1, 2))
    for given in (batch, {**batch, "num_items_in_batch": 31}, {**batch, "num_items_in_batch": torch.tensor(31)}):
        want, got = one(**given), two(**given)
        assert (want.logits - got.logits).abs().max() < 1e-5 and abs(want.loss - got.loss) < 1e-6 * want.loss
    as_tuple = two(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], two(**batch).loss)
    assert torch.equal(two(batch["input_ids"], position_ids=batch["position_ids"]).logits, got.logits)


def test_documents_are_dealt_whole():
    assert deal([5, 5, 5, 5], 2) == [[0, 1], [2, 3]]  # neighbours, where these are even
    assert deal([40, 7, 1, 19], 2) == [[0], [1, 2, 3]]
    assert deal([30, 1, 29, 1, 1], 2) == [[0, 1], [2, 3, 4]]
    assert deal([4, 8, 4], 2) == [[1], [0, 2]]  # no cut is as even
    assert sorted(deal([12], 2)) == [[], [0]] and deal([], 2) == [[], []] and deal([3, 4], 1) == [[0, 1]]


def test_documents_are_found():
    assert find_documents((1, 6), {"position_ids": torch.tensor([[0, 1, 0, 0, 1, 2]])}) == [0, 2, 3, 6]
    assert find_documents((2, 3), {"position_ids": torch.tensor([[4, 5, 6], [0, 1, 0]])}) == [0, 3, 5, 6]
    assert find_documents((2, 3), {"position_ids": torch.tensor([[0, 1, 2]])}) == [0, 3, 6]
    assert find_documents((2, 3), {}) == [0, 3, 6] and find_documents((1, 0), {}) == [0]
    given = {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "position_ids": torch.arange(5)[None]}
    assert find_documents((1, 5), given) == [0, 2, 5]


def layers_in_order():
    model, entered = attached(2), []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda module, _: entered.append(module.layer_idx))
    model(**packed(documents_of(DOCUMENTS[dist.get_rank()])))
    return entered


def test_nano_batches_take_turns(two_ranks):
    assert two_ranks.run(layers_in_order) == [[0, 0, 1, 1]] * 2


def train_ahead(nano_batches):
    """The worst gradient of four batches, and the plans made within the steps of the last two."""
    rank = dist.get_rank()
    steps = [[[40, 7, 1, 19], [5, 3]], [[21], []], [[9, 33], [400]], [[700, 3], [8, 8]]]
    model, alone = attached(nano_batches), plain()
    worst, made, names = 0.0, [], ("input_ids", "position_ids")
    for batch in distca.plan_ahead([packed(documents_of(step[rank])) for step in steps],
                                   distca.transformers.cu_seqlens_of(model)):
        before = ops.counts(name_of(None))[-1]
        for each in (model, alone)[: 1 if batch["input_ids"].numel() == 0 else 2]:
            each.zero_grad()
            taken = [name for name in batch if name != "labels" and (each is model or name in names)]
            given = {name: batch[name] for name in taken}
            exact_loss(each(**given).logits, batch["labels"], 3).backward()
        made.append(ops.counts(name_of(None))[-1] - before)
        if batch["input_ids"].numel():
            worst = max(worst, worst_gradient(full_gradients(model), full_gradients(alone)))
    return worst, made[2:]


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_batches_are_planned_ahead(two_ranks, nano_batches):
    for worst, made in two_ranks.run(train_ahead, nano_batches):
        assert worst < 1e-10 and made == [0, 0]
    with pytest.raises(ValueError, match="this LlamaForCausalLM is not attached"):
        distca.transformers.cu_seqlens_of(make())
    with pytest.raises(ValueError, match="^the batch has neither input_ids nor inputs_embeds"):
        distca.transformers.cu_seqlens_of(attached())({"labels": torch.zeros(1, 4)})


def train_ahead_with_lengths():
    """The plans made within the steps, where batches say where documents begin and nobody says how to plan them."""
    steps, made = [[[40, 7], [5, 3]], [[21], [6]], [[9, 33], [400]], [[700, 3], [8, 8]]], []
    model = attached()
    for batch in distca.plan_ahead([packed(documents_of(step[dist.get_rank()]), with_lengths=True) for step in steps]):
        before = ops.counts(name_of(None))[-1]
        model(**batch).loss.backward()
        made.append(ops.counts(name_of(None))[-1] - before)
    return made[2:]


def test_batches_that_say_where_documents_begin_are_planned_ahead(two_ranks):
    assert two_ranks.run(train_ahead_with_lengths) == [[0, 0]] * 2


def verify():
    before = distca.statistics().sent_bytes
    found = distca.verify(attached(2), packed(documents_of([700, 3] if dist.get_rank() == 0 else [8])))
    return bool(found), found.bound, distca.statistics().sent_bytes - before


def test_an_attached_model_is_verified(two_ranks):
    assert all(good and bound == 1e-10 and sent > 0 for good, bound, sent in two_ranks.run(verify))


def serve(nano_batches, empty, evaluates):
    """Gradients of a step of two ranks; on the rank that is `empty` they are zeros. Evaluations lie in between."""
    rank = dist.get_rank()
    of_ranks = [[] if r == empty else documents_of(DOCUMENTS[r]) for r in range(2)]
    model, alone = attached(nano_batches), plain()
    before = distca.statistics()
    out = model(**packed(of_ranks[rank]))
    sent = distca.statistics()
    if evaluates:
        for _ in range(2 * rank + 1):  # another rank, another number of times
            with torch.no_grad():
                again = model.eval()(**packed(of_ranks[rank]))
        model.train()
        assert (again.logits - out.logits).abs().max() < 1e-12 if rank != empty else again.logits.shape == (1, 0, 64)
        assert distca.statistics() == sent
    out.loss.backward()
    after = distca.statistics()
    assert after.forwards - before.forwards == 2 * nano_batches == after.backwards - before.backwards
    got = full_gradients(model)
    if rank == empty:
        return out.loss.item(), max(gradient.abs().max().item() for gradient in got.values()), list(out.logits.shape)
    want = alone(**packed(of_ranks[rank]))
    want.loss.backward()
    return abs(out.loss - want.loss).item(), worst_gradient(got, full_gradients(alone)), list(out.logits.shape)


@pytest.mark.parametrize("nano_batches", [1, 2])
@pytest.mark.parametrize("empty, evaluates", [(0, False), (1, True), (None, True)])
def test_an_empty_rank_serves_and_evaluations_lie_in_between(two_ranks, nano_batches, empty, evaluates):
    for rank, (loss, gradient, shape) in enumerate(two_ranks.run(serve, nano_batches, empty, evaluates)):
        assert shape == [1, 0 if rank == empty else sum(DOCUMENTS[rank]), 64]
        if rank == empty:
            assert loss == 0 and gradient == 0
        else:
            assert loss < 1e-6 and gradient < 1e-5  # the loss of Transformers is of fp32


def generate():
    """Whether greedy generation, padded and not, with a cache and without, is that of sdpa; nothing is sent."""
    rank = dist.get_rank()
    prompt = rows(2, 9 + 3 * rank)
    padding = torch.ones_like(prompt)
    padding[1, :4] = 0
    before, found = distca.statistics(), []
    for kind in ("llama", "mistral"):
        want, got = plain(kind).eval(), attached(2, kind).eval()
        for given in ({}, {"attention_mask": padding}, {"use_cache": False, "attention_mask": torch.ones_like(prompt)}):
            keywords = {"max_new_tokens": 5 + rank, "do_sample": False, "pad_token_id": 0, **given}
            found.append(torch.equal(got.generate(prompt, **keywords), want.generate(prompt, **keywords)))
    return found, distca.statistics() == before


def test_generation_is_local_and_that_of_sdpa(two_ranks):
    for found, nothing_sent in two_ranks.run(generate):
        assert found == [True] * 6 and nothing_sent


def test_evaluation_with_a_mask_is_that_of_sdpa():
    tokens = rows(2, 6)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril() & (torch.arange(6) != 2)
    mask[:, :, 2, 2] = True
    for kind, given in (("llama", mask), ("qwen2", {"full_attention": mask, "sliding_attention": mask})):
        with torch.no_grad():
            want, got = (model(tokens, attention_mask=given).logits for model in (plain(kind), attached(2, kind)))
        assert torch.equal(want, got)


def test_a_model_is_saved_and_copied_as_before(tmp_path):
    model, before = attached(2, dtype=torch.float32), make()
    assert list(model.state_dict()) == list(before.state_dict())
    model.save_pretrained(tmp_path)
    assert "distca" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"
    assert all(torch.equal(again.state_dict()[name], value) for name, value in before.state_dict().items())
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    batch = packed(documents_of([5, 4]))
    assert copied(**batch).logits.abs().max() == 0 < model(**batch).logits.abs().max()


FOUR = torch.ones(1, 1, 6, 6, dtype=torch.bool)
HOLE = torch.tensor([[1, 1, 1, 1, 1, 0]])
PLACES = torch.tensor([0, 6])
REFUSED = [
    ({"attention_mask": HOLE}, {}, "padded batches are not served: pack documents with DataCollatorWithFlattening"),
    ({"attention_mask": FOUR}, {}, "a mask that is not .batch, tokens. is not served"),
    ({"attention_mask": {"full_attention": FOUR}}, {}, "a mask that is not .batch, tokens. is not served"),
    ({"use_cache": True}, {}, "a KV cache is not served in training"),
    ({"past_key_values": transformers.DynamicCache()}, {}, "a KV cache is not served in training"),
    ({"output_attentions": True}, {}, "output_attentions: attention returns no probabilities"),
    ({"token_type_ids": HOLE}, {}, "token_type_ids may change the mask"),
    ({"is_causal": False}, {}, "attention that is not causal is not served"),
    ({"s_aux": torch.zeros(4)}, {}, "s_aux: attention sinks are not served"),
    ({"softcap": 5.0}, {}, "softcap = 5.0: softcap is not served"),
    ({"position_ids": torch.arange(6).expand(3, 1, 6)}, {}, "position_ids have shape .3, 1, 6."),
    ({"cu_seq_lens_q": torch.tensor([0, 5])}, {}, "ends with the batch's 6 tokens"),
    ({"cu_seq_lens_q": PLACES, "cu_seq_lens_k": torch.tensor([0, 3, 6])}, {}, "cross attention is not served"),
    ({"input_ids": torch.ones(2, 3, dtype=torch.int64), "cu_seq_lens_q": PLACES}, {}, "cu_seq_lens_q and 2 rows"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 3]])}, {}, "attention_mask has other values than 0 and 1"),
    ({}, {"attention_dropout": 0.1}, "dropout = 0.1: dropout of attention is not served"),
    ({}, {"head_dim": 264}, "head_dim of q is 264: 1 to 256"),
    ({}, {"dtype": torch.float16}, "float16 is not served"),
]


def test_what_has_a_value_for_each_token_goes_to_its_nano_batch():
    model, taken = attached(2), []
    model.model.layers[0].register_forward_pre_hook(lambda _, __, given: taken.append(given["domain_ids"]), with_kwargs=True)
    tokens = torch.arange(29)[None]
    model(input_ids=tokens, position_ids=torch.tensor([[*range(20), *range(9)]]), domain_ids=tokens + 7)
    assert sorted(ids.flatten().tolist() for ids in taken) == [list(range(7, 27)), list(range(27, 36))]


REFUSED_OF_NANO_BATCHES = [({"mine": torch.zeros(6)}, "mine has no value for each token, so it cannot be divided: attach with nano_batches=1")]


def refuse(cases, nano_batches):
    """What each case says, and whether anything was sent."""
    before, said = distca.statistics(), []
    for given, changes in cases:
        dtype = changes.get("dtype", torch.float32)
        model = attached(nano_batches, dtype=dtype, **{k: v for k, v in changes.items() if k != "dtype"})
        try:
            model(**{"input_ids": torch.ones(1, 6, dtype=torch.int64), **given})
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    return said, distca.statistics() == before


def test_what_is_not_served_is_refused_before_a_message(two_ranks):
    for cases, nano_batches in (([case[:2] for case in REFUSED], 1),
                                ([(given, {}) for given, _ in REFUSED_OF_NANO_BATCHES], 2)):
        lines = [case[-1] for case in (REFUSED if nano_batches == 1 else REFUSED_OF_NANO_BATCHES)]
        for said, nothing_sent in two_ranks.run(refuse, cases, nano_batches):
            assert nothing_sent
            for one, line in zip(said, lines, strict=True):
                with pytest.raises(ValueError, match=line):
                    raise ValueError(one)
                assert "\n" not in one


def llava():
    """A model of images, whose config has the decoder's within."""
    torch.manual_seed(5)
    text = dict(model_type="llama", vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, use_cache=False)
    vision = dict(model_type="clip_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                  num_attention_heads=2, image_size=28, patch_size=14)
    return transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=63)).double()


def test_nano_batches_of_a_config_in_a_config():
    want, model = llava(), llava()
    distca.transformers.attach(model, nano_batches=2)
    given = packed(documents_of([9, 14, 3]))
    assert (model(**given).logits - want(**given).logits).abs().max() < 1e-5  # norms compute in fp32


def test_linear_work_is_that_of_a_token():
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=4, head_dim=8)
    projections, one_expert = 4 * 32 * 32, 3 * 32 * 48
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4))
    mixtral = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **sizes, num_local_experts=5, num_experts_per_tok=2))
    for model, wanted in ((make(num_key_value_heads=4), projections + one_expert), (gpt2, 12 * 32 * 32),
                          (mixtral, projections + 5 * 32 + 2 * one_expert)):
        assert distca.transformers._linear_work(model) == wanted


def test_without_greenlet_a_model_stays_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)
    model = make()
    with pytest.raises(ImportError, match="needs the package greenlet: pip install greenlet"):
        distca.transformers.attach(model, nano_batches=2)
    assert model.config._attn_implementation == "sdpa" and not hasattr(model.forward, "distca")


def refused_models():
    attached_already = attached()
    encoder = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=16))
    sinks = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **sizes, intermediate_size=16, num_key_value_heads=2, head_dim=8, num_local_experts=2))
    chunks = make()
    chunks.config.layer_types = ["chunked_attention"] * 2
    replaced = make()
    replaced.forward = functools.partial(replaced.forward)
    return [(replaced, "the forward of this LlamaForCausalLM is replaced by another one"),
            (attached_already, "this LlamaForCausalLM is attached already"),
            (torch.nn.Linear(2, 2), "Linear is no model of Transformers: attach the model itself"),
            (encoder, "T5ForConditionalGeneration is no causal language model"),
            (masked, "BertForMaskedLM is no causal language model"),
            (sinks, "GptOssForCausalLM does not support both sdpa and flash attention"),
            (chunks, "LlamaForCausalLM has layers of chunked_attention")]


def test_models_that_cannot_be_served_are_refused():
    for model, line in refused_models():
        with pytest.raises(ValueError, match=line):
            distca.transformers.attach(model)
    with pytest.raises(ValueError, match="nano_batches = 3: 1 or 2"):
        distca.transformers.attach(make(), nano_batches=3)


def test_a_model_that_is_not_attached_does_not_train_with_it():
    model = make()
    model.set_attn_implementation("distca")
    with pytest.raises(ValueError, match="attention is called by a model that is not attached"):
        model(rows(1, 5))


def test_context_parallelism_of_accelerate_is_refused(monkeypatch):
    state = pytest.importorskip("accelerate.state")
    config = pytest.importorskip("accelerate").ParallelismConfig()
    config.cp_size = 2
    monkeypatch.setitem(state.AcceleratorState._shared_state, "parallelism_config", config)
    with pytest.raises(ValueError, match="context parallelism of Accelerate is on"):
        attached()(rows(1, 5))


def test_another_version_of_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__="4.57.1"))
    with pytest.raises(ImportError, match="^distca needs Transformers .* or newer, but 4.57.1 is installed: "):
        require("transformers")
