"""What distca.megatron refuses, in which words, before anything is sent; what it makes of specs; inference."""

import contextlib
import sys
import types

import pytest
import torch

pytest.importorskip("megatron.core")

import megatron_model as megatron  # noqa: E402
from attention_model import cu_seqlens_of, distance, sdpa  # noqa: E402
from megatron.core import tensor_parallel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.enums import AttnMaskType  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distca.megatron  # noqa: E402
from distca import _versions  # noqa: E402


def core_attention(softmax_scale=None, attn_mask_type=AttnMaskType.causal, attention_type="self", groups=None,
                   **changes):
    config = megatron.config_of(torch.float64, **changes)
    groups = groups or types.SimpleNamespace()  # of this process alone
    return distca.megatron.CoreAttention(
        config=config, layer_number=1, attn_mask_type=attn_mask_type, attention_type=attention_type, cp_comm_type=None,
        softmax_scale=softmax_scale, pg_collection=groups)


CONFIGS = [
    (dict(attention_dropout=0.1),
     r"attention_dropout = 0.1 \(TransformerConfig's default is 0.1\): dropout is not served"),
    (dict(context_parallel_size=2), "context_parallel_size = 2, and the context-parallel group has no ranks: give"),
    (dict(context_parallel_size=2, mtp_num_layers=1),
     "mtp_num_layers = 1 with context_parallel_size = 2 is not served: it shifts tokens across"),
    (dict(hybrid_context_parallel=True), "hybrid_context_parallel = True is not served"),
    (dict(fp16=True), "fp16 = True: float16 is not served"),
    (dict(softmax_type="learnable"), "softmax_type = 'learnable': attention sinks are not served"),
    (dict(softmax_type="off-by-one"), "softmax_type = 'off-by-one': attention sinks are not served"),
    (dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1),
     "recompute_granularity = 'full' is not served: Megatron recomputes it by reentrant checkpointing"),
    (dict(log_max_attention_logit=True), "qk_clip: attention returns no greatest score"),
    (dict(window_size=(8, 4)), r"window_size = \(8, 4\): no query sees keys behind it, \(W, 0\)"),
    (dict(attention_type="cross"), "cross attention is not served"),
    (dict(attn_mask_type=AttnMaskType.padding), "attn_mask_type = AttnMaskType.padding: causal or padding_causal"),
]


@pytest.mark.parametrize("given, line", CONFIGS, ids=[f"{' '.join(given)} {i}" for i, (given, _) in enumerate(CONFIGS)])
def test_what_a_model_may_not_have(given, line):
    with pytest.raises(ValueError, match=line) as raised:
        core_attention(**given)
    assert "\n" not in str(raised.value)


def test_fp8_and_fp4_are_refused():
    for kind in ("fp8", "fp4"):
        config = megatron.config_of(torch.float64)
        setattr(config, kind, "e4m3")  # its own check asks for a GPU
        with pytest.raises(ValueError, match=f"{kind} = 'e4m3': {kind} is not served"):
            distca.megatron.CoreAttention(config=config, layer_number=1, attn_mask_type=AttnMaskType.causal,
                                          attention_type="self", pg_collection=types.SimpleNamespace(dp=object()))


def test_packed_rows_that_scripts_cut_whole_are_refused(monkeypatch):
    arguments = types.SimpleNamespace(dataloader_inter_document_masking=True, sft=False)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", types.SimpleNamespace(_GLOBAL_ARGS=arguments))
    config = megatron.config_of(torch.float64)
    distca.megatron._check_config(config)
    config.context_parallel_size = 2
    with pytest.raises(ValueError, match="^--dataloader-inter-document-masking with context_parallel_size = 2 is not served"):
        distca.megatron._check_config(config)
    arguments.sft = True  # cuts each document
    distca.megatron._check_config(config)


def test_cuda_graphs_are_refused():
    config = megatron.config_of(torch.float64)
    config.cuda_graph_impl = "local"
    with pytest.raises(ValueError, match="cuda_graph_impl = 'local': the host takes part in each exchange"):
        distca.megatron._check_config(config)


def test_another_layout_of_context_parallel_ranks_is_refused():
    config = megatron.config_of(torch.float64, context_parallel_size=2)
    config.attention_cp_layout = "contiguous"  # of versions behind 0.19
    with pytest.raises(ValueError, match="attention_cp_layout = 'contiguous': 'zigzag'"):
        distca.megatron._check_config(config)


def test_selective_recomputation_is_served():
    for modules in (["mlp"], ["core_attn"]):
        core_attention(recompute_granularity="selective", recompute_modules=modules)


def test_the_data_parallel_group(two_ranks):
    group = object()
    assert core_attention(groups=types.SimpleNamespace(dp_cp=group)).group is group
    assert core_attention(groups=types.SimpleNamespace()).group is None  # of a process alone
    two_ranks.tell(core_attention, None, AttnMaskType.causal, "self", types.SimpleNamespace())
    for rank in range(2):
        assert "there is no data-parallel group: give pg_collection one as dp" in two_ranks.hear(rank)[1]


def test_a_mask_of_ones_is_ignored_as_by_the_kernels():
    core, inputs, ones = core_attention(), heads(7, 1, 2, 8, grad=False), torch.ones(1, 1, 7, 7, dtype=torch.bool)
    assert torch.equal(core(*inputs, ones), core(*inputs, None))
    rows = [x.flatten(0, 1) for x in inputs]
    for mask in (ones, torch.ones(1, 7)):
        assert torch.equal(core(*rows, mask, packed_seq_params=packed()), core(*rows, None, packed_seq_params=packed()))
    with pytest.raises(ValueError, match="attention_mask is not the causal one: padding is not served"):
        core(*inputs, ones, attn_mask_type=AttnMaskType.padding_causal)  # there it says what is padding


def test_room_behind_documents():
    """As without it, and O and gradients are 0 there."""
    core = core_attention()
    cu_seqlens, padded, real = cu_seqlens_of([3, 1, 4]), cu_seqlens_of([5, 1, 8]), [0, 1, 2, 5, 6, 7, 8, 9]
    wide = heads(14, 2, 8)
    tight = [x.detach()[real].requires_grad_() for x in wide]
    o = core(*wide, None, packed_seq_params=packed(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens.clone(),
                                                   cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded.clone()))
    want = core(*tight, None, packed_seq_params=packed(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens))
    weights = torch.randn_like(o)
    (o * weights).sum().backward()
    (want * weights[real]).sum().backward()
    room = torch.ones(14, dtype=torch.bool)
    room[real] = False
    assert distance(o[real], want) < 1e-12 and not o[room].any()
    for got, expected in zip(wide, tight):
        assert distance(got.grad[real], expected.grad) < 1e-12 and not got.grad[room].any()


def heads(*shape, grad=True):
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=grad) for _ in range(3)]


def packed(**changes):
    places = cu_seqlens_of([3, 4])
    return PackedSeqParams(**{**dict(qkv_format="thd", cu_seqlens_q=places, cu_seqlens_kv=places), **changes})


NO_MASK = dict(attn_mask_type=AttnMaskType.no_mask)
FULL = torch.zeros(1, 1, 7, 7, dtype=torch.bool)
CALLS = [
    (dict(packed_seq_params=packed(qkv_format="bshd")), "packed_seq_params.qkv_format = 'bshd': 'thd', or no packed"),
    (dict(packed_seq_params=packed(cu_seqlens_q=None)), r"packed_seq_params.cu_seqlens_q is None: \[documents \+ 1\]"),
    (dict(packed_seq_params=packed(cu_seqlens_kv=cu_seqlens_of([2, 5]))), "cu_seqlens_q and cu_seqlens_k differ"),
    (dict(packed_seq_params=packed(cu_seqlens_q_padded=cu_seqlens_of([2, 5]))), "cu_seqlens_q_padded does not fit"),
    (dict(packed_seq_params=packed(cu_seqlens_q_padded=cu_seqlens_of([3, 4, 0]))), "cu_seqlens_q_padded does not fit"),
    (dict(packed_seq_params=packed(cu_seqlens_kv_padded=cu_seqlens_of([4, 4]))), "cu_seqlens_kv_padded does not fit"),
    (dict(packed_seq_params=packed(cu_seqlens_q_padded=cu_seqlens_of([4, 4]))), "cu_seqlens_q ends with 8, q has 7"),
    (dict(packed_seq_params=packed(local_cp_size=2)), "packed_seq_params.local_cp_size = 2 is not served: all documents"),
    (dict(packed_seq_params=packed(cp_group=types.SimpleNamespace(size=lambda: 2))),
     "packed_seq_params.cp_group has several ranks, and context_parallel_size = 1: as many"),
    (dict(packed_seq_params=packed(), attention_mask=FULL), "attention_mask beside packed_seq_params: pass attention_mask=None"),
    (dict(packed_seq_params=packed(), **NO_MASK), "attn_mask_type = AttnMaskType.no_mask: causal or padding_causal"),
    (dict(attention_bias=torch.zeros(7, 7)), "attention_bias is not served"),
    (dict(attention_mask=FULL), "attention_mask is not the causal one: padding is not served"),
]


@pytest.mark.parametrize("given, line", CALLS, ids=str)
def test_what_a_call_may_not_ask(given, line):
    given = dict(given)
    mask = given.pop("attention_mask", None)
    with pytest.raises(ValueError, match=line) as raised:
        core_attention()(*heads(*((7,) if "packed_seq_params" in given else (7, 1)), 2, 8), mask, **given)
    assert "\n" not in str(raised.value)


def test_recomputation_by_hand(monkeypatch):
    """Of attention alone it is served; of what makes Q, K and V, too, it is refused."""
    core = core_attention()
    monkeypatch.setattr(tensor_parallel.random, "IS_CHECKPOINTING", False)  # after an error, Megatron leaves it set
    for name, stub in (("_get_all_rng_states", tuple), ("_set_all_rng_states", lambda *_: None),
                       ("_fork_rng", contextlib.nullcontext)):  # those of a GPU
        monkeypatch.setattr(tensor_parallel.random, name, stub)
    inputs, weights = heads(7, 1, 2, 8), torch.randn(7, 1, 16, dtype=torch.float64)
    o = core(*inputs, None)
    want = torch.autograd.grad((o * weights).sum(), inputs)
    again = tensor_parallel.checkpoint(lambda *qkv: core(*qkv, None), False, *inputs)
    (again * weights).sum().backward()
    assert torch.equal(again, o) and all(torch.equal(x.grad, wanted) for x, wanted in zip(inputs, want))
    with pytest.raises(ValueError, match="attention under tensor_parallel.checkpoint is not served"):
        tensor_parallel.checkpoint(lambda q, k, v: core(2 * q, k, v, None), False, *heads(7, 1, 2, 8))
    tensor_parallel.random._unset_checkpointing()
    # Multi-latent attention of 0.19 pads V of packed documents within what is checkpointed.
    core.recomputes = True
    (query, key, _), (_, _, value) = heads(7, 2, 24), heads(7, 2, 16)

    def padded(query, key, value):
        return core(query, key, torch.nn.functional.pad(value, [0, 8]), None, packed_seq_params=packed())

    o, weights = padded(query, key, value), torch.randn(7, 48, dtype=torch.float64)
    want = torch.autograd.grad((o * weights).sum(), (query, key, value))
    again = tensor_parallel.checkpoint(padded, False, query, key, value)
    (again * weights).sum().backward()
    assert torch.equal(again, o) and all(torch.equal(x.grad, wanted) for x, wanted in zip((query, key, value), want))
    with pytest.raises(ValueError, match="attention under torch.utils.checkpoint needs packed_seq_params"):
        checkpoint(lambda *qkv: core(*qkv, None), *heads(7, 1, 2, 8), use_reentrant=False)


def test_interleaved_stages_need_packed_documents():
    """Layers 3 and 4 of a micro-batch may follow 1 and 2 of another one: nothing says to ranks that these are two."""
    core = core_attention()
    core.config.virtual_pipeline_model_parallel_size = 2
    with pytest.raises(ValueError, match="^virtual_pipeline_model_parallel_size = 2 needs packed_seq_params with qkv"):
        core(*heads(7, 1, 2, 8), None)
    assert core(*heads(7, 1, 2, 8, grad=False), None).shape == (7, 1, 16)


def test_a_mask_of_inference_mode():
    core, inputs = core_attention(), heads(6, 1, 2, 8, grad=False)
    with torch.inference_mode():
        mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).triu(1)
        assert torch.equal(core(*inputs, mask), core(*inputs, None))
        mask[0, 0, 5, 2] = True
        with pytest.raises(ValueError, match="attention_mask is not the causal one"):
            core(*inputs, mask)


def test_a_spec_is_copied():
    given = get_gpt_layer_local_spec()
    stock = given.submodules.self_attention.submodules.core_attention
    made = distca.megatron.use(given)
    assert made.submodules.self_attention.submodules.core_attention is distca.megatron.CoreAttention
    assert given.submodules.self_attention.submodules.core_attention is stock is not distca.megatron.CoreAttention
    block = distca.megatron.use(TransformerBlockSubmodules(layer_specs=[given, given], layer_norm=None))
    for spec in [*block.layer_specs, *distca.megatron.use([given])]:
        assert spec.submodules.self_attention.submodules.core_attention is distca.megatron.CoreAttention
    with pytest.raises(ValueError, match="ModuleSpec has no core_attention: give the spec of a layer or of a block"):
        distca.megatron.use(ModuleSpec(module=torch.nn.Linear))
    given.submodules.self_attention.submodules.core_attention = ModuleSpec(module=torch.nn.Linear, submodules=object())
    with pytest.raises(ValueError, match="core_attention of the spec is Linear with parts of its own"):
        distca.megatron.use(given)
    stack = distca.megatron.use([get_gpt_layer_local_spec(), given])  # few models have the second of its kinds of layers
    assert stack[0].submodules.self_attention.submodules.core_attention is distca.megatron.CoreAttention
    assert stack[1].submodules.self_attention.submodules.core_attention.module is torch.nn.Linear


@pytest.mark.parametrize("window", [None, (3, 0)], ids=str)
def test_a_cache_of_keys_serves_inference(window):
    core = core_attention(softmax_scale=0.3, window_size=window)
    query, key, value = heads(9, 2, 4, 8, grad=False)
    whole = core(query, key, value, None)
    rows = [x.transpose(0, 1).flatten(0, 1) for x in (query, key, value)]
    want = sdpa(*rows, cu_seqlens_of([9, 9]), window[0] if window else -1, 0.3).view(2, 9, -1).transpose(0, 1)
    assert distance(whole, want) < 1e-12
    for begin, end in ((0, 1), (1, 2), (4, 9)):
        part = core(query[begin:end], key[:end], value[:end], None, attn_mask_type=AttnMaskType.no_mask)
        assert distance(part, whole[begin:end]) < 1e-12


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr("megatron.core.__version__", "0.12.3")
    with pytest.raises(ImportError, match="distca needs Megatron-Core 0.16 or newer, but 0.12.3 is installed: "):
        _versions.require("megatron.core")
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(ImportError, match="Megatron-Core is not installed: pip install megatron-core"):
        _versions.require("megatron.core")


def test_rows_of_one_forward_share_their_places():
    """Successive layers do."""
    places = [distca.megatron._cu_seqlens_of_rows(layer, 7, 2) for layer in (1, 2, 1, 2)]
    assert places[0].tolist() == [0, 7, 14]
    assert places[0] is places[1] is not places[2] and places[2] is places[3]
    assert distca.megatron._cu_seqlens_of_rows(3, 9, 2).tolist() == [0, 9, 18]
