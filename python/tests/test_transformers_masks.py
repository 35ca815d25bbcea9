"""distca.transformers: what models make of a mask besides attention, masks that have a window, and detaching."""

import copy
import inspect

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers_model import documents_of, full_gradients, make, packed, worst_gradient  # noqa: E402

import distca.transformers  # noqa: E402

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
         "shared_expert_intermediate_size": 16, "use_cache": False}
LENGTHS = [23, 5, 1, 14]


def of_experts(kind, **changes):
    name = "num_local_experts" if kind == "Mixtral" else "num_experts"
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **{name: 4, "num_experts_per_tok": 2}, **changes)
    return getattr(transformers, f"{kind}ForCausalLM")(config).train()


@pytest.mark.parametrize("kind", ["Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe"])
def test_losses_of_routers_are_those_of_the_batch(kind):
    batch = packed(documents_of(LENGTHS))
    plain = of_experts(kind)
    want = plain(**batch, output_router_logits=True)
    want.loss.backward()
    assert want.aux_loss > 0
    for nano_batches in (1, 2):
        model = of_experts(kind)
        distca.transformers.attach(model, nano_batches=nano_batches)
        for mask in ({}, {"attention_mask": torch.ones_like(batch["input_ids"])}):
            with torch.no_grad():
                evaluated = model(**batch, **mask, output_router_logits=True)
            got = model(**batch, **mask, output_router_logits=True)
            for out in (evaluated, got):
                assert abs(out.loss - want.loss) < 1e-5 and abs(out.aux_loss - want.aux_loss) < 1e-5
        got.loss.backward()
        assert worst_gradient(full_gradients(model), full_gradients(plain)) < 1e-4



@pytest.mark.parametrize("nano_batches", [1, 2])
def test_a_window_holds_where_the_mask_has_it(nano_batches):
    """A model's layer does not hand its window to attention, or has one that its mask has not."""
    lengths = [30, 12]
    want, got = (make("mistral", use_cache=False, sliding_window=5) for _ in range(2))
    distca.transformers.attach(got, nano_batches=nano_batches)
    for layer in got.model.layers:
        assert layer.self_attn.config.sliding_window == 5
        layer.self_attn.config = copy.copy(layer.self_attn.config)
        layer.self_attn.config.sliding_window = None
    batch = packed(documents_of(lengths))
    assert (got(**batch).logits - want(**batch).logits).abs().max() < 1e-4
    for model in (want, got):
        model.config.sliding_window = None
    assert (got(**batch).logits - want(**batch).logits).abs().max() < 1e-4


@pytest.mark.parametrize("nano_batches", [1, 2])
def test_masks_of_another_kind_are_refused(nano_batches, monkeypatch):
    from transformers.models.llama import modeling_llama

    make_mask = modeling_llama.create_causal_mask
    model, batch = make(), packed(documents_of(LENGTHS))
    distca.transformers.attach(model, nano_batches=nano_batches)
    for changes in ({"or_mask_function": lambda batch, head, query, key: key <= 3},
                    {"and_mask_function": lambda batch, head, query, key: key != 3}):
        monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **given: make_mask(**given, **changes))
        with pytest.raises(ValueError, match="a mask that is neither causal nor causal with a window: it is not served"):
            model(**batch)
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **_: torch.zeros(1, 1, 43, 43))
    with pytest.raises(ValueError, match="the model makes a mask of its own for its attention: it is not served"):
        model(**batch)


def test_document_numbers_are_no_mask():
    batch = packed(documents_of([3, 2]))
    numbers = torch.tensor([[1, 1, 1, 2, 2]])
    model = make()
    distca.transformers.attach(model)
    for given in ({"input_ids": batch["input_ids"]}, batch):
        for trains in (True, False):
            with torch.set_grad_enabled(trains), pytest.raises(ValueError, match="other values than 0 and 1"):
                model(**given, attention_mask=numbers)


def without_positions(kind):
    torch.manual_seed(5)
    if kind == "bart":
        return transformers.BartForCausalLM(transformers.BartConfig(
            vocab_size=64, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, use_cache=False,
            max_position_embeddings=64, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, is_decoder=True))
    return transformers.RobertaForCausalLM(transformers.RobertaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, is_decoder=True,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, use_cache=False))


@pytest.mark.parametrize("kind", ["bart", "roberta"])
def test_positions_that_a_model_does_not_take_are_refused(kind):
    """Bart takes none, and Roberta counts from behind its token of padding where it is given none."""
    want, got = without_positions(kind), without_positions(kind)
    if kind == "bart" and "kwargs" not in inspect.signature(want.base_model.decoder.layers[0].forward).parameters:
        with pytest.raises(ValueError, match="keeps its keyword arguments from its attention: it is not served"):
            distca.transformers.attach(got)
            got(**packed(documents_of([9])))
        return
    with pytest.raises(ValueError, match="takes no position_ids that begin with 0, so documents cannot be dealt"):
        distca.transformers.attach(got, nano_batches=2)
    distca.transformers.attach(got)
    rows = torch.stack(documents_of([9, 9, 9])) % 60 + 3
    assert (got(rows).logits - want(rows).logits).abs().max() < 1e-5
    batch = packed(documents_of(LENGTHS))
    with pytest.raises((ValueError, TypeError), match="position_ids"):
        got(**batch)
    batch.pop("position_ids")
    with pytest.raises(ValueError, match="takes no position_ids that begin with 0: it is served with one document in each"):
        got(**batch, cu_seq_lens_q=torch.tensor([0, 23, 43]))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_another_attention_may_be_set_and_a_model_is_given_back(kind):
    batch = packed(documents_of(LENGTHS))
    plain, model = make(kind, use_cache=False), make(kind, use_cache=False)
    want, signature, names = plain(**batch).logits, dict(vars(model)).keys(), [type(one) for one in model.modules()]
    distca.transformers.attach(model, nano_batches=2)
    for attention in ("eager", "sdpa", "distca"):
        model.set_attn_implementation(attention)
        before = distca.statistics()
        assert (model(**batch).logits - want).abs().max() < 1e-4
        assert (distca.statistics() == before) == (attention != "distca")
    copied = copy.deepcopy(model)
    for one in (model, copied):
        distca.transformers.detach(one)
        assert one.config._attn_implementation == one.model.config._attn_implementation == "sdpa"
        assert "forward" not in vars(one) and "forward" not in vars(one.model) and vars(one).keys() == signature
        assert torch.equal(one(**batch).logits, want) and [type(module) for module in one.modules()] == names
        with pytest.raises(ValueError, match="this .*ForCausalLM is not attached"):
            distca.transformers.detach(one)
    distca.transformers.attach(model)
    assert (model(**batch).logits - want).abs().max() < 1e-4


def test_a_forward_that_another_one_replaced_is_given_back():
    model = make()
    calls = []

    def forward(self, **keywords):
        calls.append(sorted(keywords))
        return type(self).forward(self, **keywords)

    model.forward = forward.__get__(model)
    distca.transformers.attach(model)
    distca.transformers.detach(model)
    model(input_ids=torch.ones(1, 4, dtype=torch.int64))
    assert calls == [["input_ids"]] and model.forward.__func__ is forward
