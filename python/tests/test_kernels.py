"""`kernel=` of attention and attach, and the compiler of FlashAttention 4's kernels as far as it needs none of its packages."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attention_model import cu_seqlens_of, qkv, worst

import distca as ours
from distca import _compiled_kernels

CU_SEQLENS = cu_seqlens_of([60, 141])
KERNELS = Path(_compiled_kernels.__file__).with_name("_kernels.py")


def results(kernel, dtype=torch.float32):
    inputs, d_o = qkv(201, dtype=dtype)
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = ours.attention(*leaves, CU_SEQLENS, CU_SEQLENS, kernel=kernel)
    return [o, *torch.autograd.grad(o, leaves, d_o)]


def test_each_kernel_computes_the_same():
    want = results("auto")
    assert all(torch.equal(a, b) for a, b in zip(results("cpu"), want))  # on a CPU, auto is ours
    for kernel in ("aten", "reference"):
        got = results(kernel)
        assert worst(got, want, least=1) < 1e-5
        assert any(not torch.equal(a, b) for a, b in zip(got, want)), kernel


@pytest.mark.parametrize("kernel, dtype, line", [
    ("fast", torch.float32, "kernel = 'fast': one of auto, cpu, aten, fa4, reference"),
    (None, torch.float32, "kernel = None: one of"),
    ("fa4", torch.bfloat16, "kernel = 'fa4' computes on a CUDA device, and q is on the CPU"),
    ("cpu", torch.float64, "kernel = 'cpu' computes torch.float32 and torch.bfloat16, not torch.float64"),
])
def test_what_a_kernel_cannot_compute_is_said_before_anything_is_sent(kernel, dtype, line):
    with pytest.raises(ValueError, match=line):
        results(kernel, dtype)
    q, k, v = (x.detach() for x in qkv(201, dtype=dtype)[0])
    answer = ours.can_run(q, k, v, CU_SEQLENS, CU_SEQLENS, kernel=kernel)
    assert not answer and line in answer.reason


def named_otherwise():
    inputs, _ = qkv(201)
    kernel = ("aten", "cpu")[dist.get_rank()]
    try:
        ours.attention(*[x.float().detach().requires_grad_() for x in inputs], CU_SEQLENS.clone(), CU_SEQLENS.clone(), kernel=kernel)
    except RuntimeError as refusal:
        return str(refusal)
    return "none"


def test_ranks_with_different_kernels_are_named(two_ranks):
    for line in two_ranks.run(named_otherwise):
        assert "rank 1 calls attention with kernel (0: auto, 1: cpu, 2: aten, 3: fa4, 4: reference) = 1, rank 0 with 2" in line


def test_an_attached_model_has_its_kernel():
    transformers = pytest.importorskip("transformers")
    import distca.transformers as attached

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=64))
    batch = {"input_ids": torch.arange(120)[None] % 64, "position_ids": torch.arange(120)[None] % 70}
    logits = {}
    for kernel in ("cpu", "aten"):
        attached.attach(model, kernel=kernel)
        logits[kernel] = model(**batch).logits
        attached.detach(model)
    assert torch.allclose(logits["cpu"], logits["aten"], atol=1e-5) and not torch.equal(logits["cpu"], logits["aten"])
    with pytest.raises(ValueError, match="kernel = 'fast': one of"):
        attached.attach(model, kernel="fast")


HOPPER = (9, 0)


def test_why_kernels_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTCA_KERNELS", str(tmp_path))
    asked = (128, "bfloat16", 4)
    assert "is for Hopper (sm_90), and the device is sm_80" in _compiled_kernels._why_not(*asked, (8, 0), 128)
    for head_dims in ((96, 96), (128, 64)):
        assert "computes head_dim 64 or 128" in _compiled_kernels._why_not(head_dims[0], *asked[1:], HOPPER, head_dims[1])
    why = _compiled_kernels._why_not(*asked, HOPPER, 128)
    assert f"there is no {tmp_path}/fa4-sm_90-d128-bfloat16-g4: pip install 'flash-attn-4" in why
    assert "distca kernels build --head-dim 128 --qheads-per-kvhead 4" in why
    folder = tmp_path / "fa4-sm_90-d128-bfloat16-g4"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    assert _compiled_kernels._why_not(*asked, HOPPER, 128) == ""
    _compiled_kernels._build_if_missing.__wrapped__(*asked, HOPPER)  # what is there is not built again


def test_kernels_that_cannot_be_built_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTCA_KERNELS", str(tmp_path))
    package = tmp_path / "site/flash_attn/cute"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert _compiled_kernels._why_not(128, "bfloat16", 4, HOPPER, 128) == ""
    with pytest.raises(ValueError, match="kernel = 'fa4': .*need the package flash-attn-4: pip install"):
        _compiled_kernels._build_if_missing.__wrapped__(128, "bfloat16", 4, HOPPER)


def compiled(*words):
    done = subprocess.run([sys.executable, KERNELS, *map(str, words)], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stderr


def test_what_cannot_be_compiled_is_one_line_and_leaves_nothing(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("a user's")
    (tmp_path / "file").write_text("")
    usual = ("sm_90", 128, "bfloat16", 4)
    for words, line in (((there, *usual, "keep"), f"{there} exists; --overwrite replaces it"),
                        ((there, *usual, "overwrite"), f"{there} is no folder of compiled kernels, and is not replaced"),
                        ((tmp_path / "file", *usual, "overwrite"), "is no folder of compiled kernels"),
                        ((tmp_path / "a", "sm_80", *usual[1:], "keep"), "--arch sm_80: kernels can be compiled for sm_90"),
                        ((tmp_path / "a", "sm_90", 96, "bfloat16", 4, "keep"), "--head-dim 96: one of 64, 128"),
                        ((tmp_path / "a", "sm_90", 128, "float16", 4, "keep"), "--dtype float16: one of bfloat16"),
                        ((tmp_path / "a", *usual, "keep"), "need the package flash-attn-4")):
        code, said = compiled(*words)
        assert code == 2 and said.startswith("distca: error: ") and line in said and said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]
    assert [path.name for path in there.iterdir()] == ["mine.txt"]
