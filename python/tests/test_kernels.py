"""`kernel=` of attention and attach, and the compiler of FlashAttention 4's kernels as far as it needs none of its packages."""

import importlib.metadata
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from attention_model import cu_seqlens_of, qkv, worst

import distca as ours
from distca import _compiled_kernels, _kernels

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
ASKED = (128, "bfloat16", 4)
FOLDER = "fa4-sm_90-d128-bfloat16-g4"


def why_not():
    return _compiled_kernels._why_not(*ASKED, HOPPER, 128)


def build():
    _compiled_kernels._build_if_missing.__wrapped__(*ASKED, HOPPER)


def test_why_kernels_cannot_be_had_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTCA_KERNELS", str(tmp_path))
    assert "is for Hopper (sm_90), and the device is sm_80" in _compiled_kernels._why_not(*ASKED, (8, 0), 128)
    for head_dims in ((96, 96), (128, 64)):
        assert "computes head_dim 64 or 128" in _compiled_kernels._why_not(head_dims[0], *ASKED[1:], HOPPER, head_dims[1])
    why = why_not()
    assert f"there is no {tmp_path}/{FOLDER}: pip install 'flash-attn-4" in why
    assert "distca kernels build --head-dim 128 --qheads-per-kvhead 4" in why


@pytest.mark.parametrize("manifest", [b"{}", b"[]", b"", b'{"format": "distca-ker', b"\xff",
                                      b'{"format": "distca-kernels", "version": 2}', b'{"format": "others", "version": 1}'])
def test_a_manifest_that_is_damaged_or_of_another_version_is_named(tmp_path, monkeypatch, manifest):
    monkeypatch.setenv("DISTCA_KERNELS", str(tmp_path))
    folder = tmp_path / FOLDER
    folder.mkdir()
    file = folder / "manifest.json"
    file.write_bytes(manifest)
    assert why_not() == f"kernel = 'fa4': {file} is damaged, or not of version 1: remove {folder}, and build it again"
    file.unlink()
    file.mkdir()
    assert why_not() == f"kernel = 'fa4': {file} cannot be read: Is a directory"
    file.rmdir()
    file.write_text('{"format": "distca-kernels", "version": 1}')
    assert why_not() == ""
    build()  # what is there is not built again


def is_missing(package):
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


NEEDED = [package for package in _kernels.PACKAGES if is_missing(package)]
not_installed = pytest.mark.skipif(not {"flash-attn-4", "nvidia-cutlass-dsl"} <= {*NEEDED},
                                   reason="FlashAttention 4 is installed here")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages before all others, here and in the process that compiles; what it has is missing elsewhere."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("DISTCA_KERNELS", str(tmp_path / "kernels"))
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("CC", "true")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]


def put(site, package, version=_kernels.TRIED):
    described = site / f"{package.replace('-', '_')}-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def put_flash_attn(site, source=""):
    (site / "flash_attn/cute").mkdir(parents=True)
    (site / "flash_attn/cute/__init__.py").write_text("")
    (site / "flash_attn/__init__.py").write_text(source)


def put_archive(site):
    cuda = (torch.version.cuda or "13").partition(".")[0]
    folder = site / f"nvidia_cutlass_dsl/cu{cuda}/lib"
    folder.mkdir(parents=True)
    (folder / "libcuda_dialect_runtime_static.a").write_text("")


def both():
    """(the line before the call, that of the process that compiles)."""
    with pytest.raises(ValueError) as refusal:
        build()
    return why_not(), str(refusal.value).replace("distca: error: ", "")


@not_installed
def test_what_compiling_needs_is_known_before(site, monkeypatch):
    put_flash_attn(site)
    for package in NEEDED:
        line = f"kernel = 'fa4': kernels of FlashAttention 4 need the package {package}: pip install 'flash-attn-4"
        before, then = both()
        assert before == then and before.startswith(line)
        put(site, package)
    monkeypatch.setenv("CC", "/nowhere/cc")
    before, then = both()
    assert before == then == "kernel = 'fa4': /nowhere/cc is not found: a C compiler links the kernels; CC may name it"
    monkeypatch.setenv("CC", "true")
    before, then = both()
    assert before == then and before.startswith("kernel = 'fa4': nvidia-cutlass-dsl has no run-time library for CUDA ")
    put_archive(site)
    other = site.parent / "kernels" / FOLDER
    other.mkdir(parents=True)
    (other / "mine.txt").write_text("a user's")
    before, then = both()
    assert before == then == f"kernel = 'fa4': {other} is no folder of compiled kernels, and is not replaced"
    (other / "mine.txt").unlink()
    assert why_not() == ""


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_flash_attn_that_cannot_be_imported_is_one_line(site, error):
    put_flash_attn(site, f"raise {error}('undefined symbol:\\n_ZN3c105Error')")
    why = why_not()
    assert why.startswith("kernel = 'fa4': the package flash_attn cannot be imported")
    assert f" ({error}: undefined symbol: _ZN3c105Error), " in why
    assert why.endswith(f"pip uninstall flash-attn, then {_kernels.INSTALL}")


@not_installed
def test_a_flash_attn_4_that_was_not_tried_is_said(site, monkeypatch):
    tried = _kernels.TRIED
    line = f"flash-attn-4 4.0.0b99 was not tried; tried: {tried}; pip install flash-attn-4=={tried} brings it"
    put_flash_attn(site)
    put_archive(site)
    for package in NEEDED:
        put(site, package, "4.0.0b99")
    code, said = compiled(site.parent / "kernels" / FOLDER, "sm_90", *ASKED, "keep")
    assert code == 2 and said.splitlines()[0] == f"distca: warning: {line}"
    done = subprocess.CompletedProcess([], 0, "", f"a line of a package\n{said.splitlines()[0]}\n")
    monkeypatch.setattr(_compiled_kernels.subprocess, "run", lambda *_, **__: done)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        build()
    assert [str(one.message) for one in warned] == [f"kernel = 'fa4': {line}"]


def test_a_link_in_the_place_of_the_lock_is_not_followed(site):
    put_flash_attn(site)
    put_archive(site)
    for package in NEEDED:
        put(site, package)
    folder = site.parent / "kernels"
    folder.mkdir()
    target, lock = site.parent / "target", folder / f".{FOLDER}.lock"
    target.write_text("of somebody else")
    lock.symlink_to(target)
    code, said = compiled(folder / FOLDER, "sm_90", *ASKED, "keep")
    assert (code, said) == (2, f"distca: error: {lock} is a link, which is not followed: remove it\n")
    assert target.read_text() == "of somebody else"
    lock.unlink()
    lock.write_text("of an older run")
    assert "is a link" not in compiled(folder / FOLDER, "sm_90", *ASKED, "keep")[1]
    assert lock.read_text() == "of an older run"


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
                        ((tmp_path / "a", *usual, "keep"), "need the package flash-attn-4")):
        code, said = compiled(*words)
        assert code == 2 and said.startswith("distca: error: ") and line in said and said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "there"]
    assert [path.name for path in there.iterdir()] == ["mine.txt"]
