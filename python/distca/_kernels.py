"""Compiles FlashAttention 4's kernels ahead of time, for `distca kernels build`, which starts this program.

  python3 distca-kernels OUT ARCH HEAD_DIM DTYPE HEADS_OF_A_KEY_HEAD {overwrite|keep|share}

Whoever starts it has checked the words (cli/kernels.cc, _served.py, _compiled_kernels.py). keep: OUT must not exist. share:
where OUT exists once it is this one's turn, another one has made it.

No GPU is needed, but PyTorch, flash-attn-4 with what compiles it, and a C compiler. The folder OUT gets a
shared object for each kernel, which needs CUDA's run-time library alone and has the C interface of TVM FFI, and
manifest.json, which says what each is. What is printed is for people. A fault is one line on standard error, exit code 2;
OUT is then as it was.

The compiled code is the user's own: the packages' licences, which the manifest names, say what may be done with it.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this program's folder: nothing there stands in for a package

PACKAGES = ("flash-attn-4", "nvidia-cutlass-dsl", "triton", "torch")
INSTALL = "pip install 'flash-attn-4>=4.0.0b36' 'nvidia-cutlass-dsl[cu13]' triton"
ARCHITECTURES = {"sm_90": ("sm_90a", "132")}  # the compiler's name, and multiprocessors
FORMAT, VERSION = "distca-kernels", 1  # of manifest.json
TRIED = "4.0.0b36"  # the version of flash-attn-4 whose kernels were compiled and checked (scripts/check_kernels.sh)
WARNING = "distca: warning: "
MASKS = ("causal", "full", "window")
# TVM FFI, as far as kernels call it: the stream that their caller gives, and the words of an error.
INTERFACE = r"""
#include <stdint.h>
#include <stdio.h>
static __thread void* stream;
static __thread char error[4096];  // with the signature, of which the reason comes last
void distca_kernel_stream(void* given) { stream = given; }
const char* distca_kernel_error(void) { return error; }
void* TVMFFIEnvGetStream(int32_t type, int32_t id) { (void)type, (void)id; return stream; }
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* what) { snprintf(error, sizeof error, "%s: %s", kind, what); }
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  int at = snprintf(error, sizeof error, "%s: ", kind);
  for (int i = 0; i < count && at < (int)sizeof error; ++i)
    if (parts[i]) at += snprintf(error + at, sizeof error - at, "%s", parts[i]);
}
void CuteDSLRT_TVMFFISetRaisedCudaError(int code) { snprintf(error, sizeof error, "CUDA error %d", code); }
"""


# What FlashAttention 4 calls the arguments of each kernel, in the order in which distca gives them.
BACKWARD = """mQ mK mV mdO mLSE mdPsum mdQaccum mdK mdV softmax_scale mCuSeqlensQ mCuSeqlensK mSeqUsedQ mSeqUsedK
window_size_left window_size_right mdQ_semaphore mdK_semaphore mdV_semaphore aux_data blocksparse_tensors
mCuTotalMBlocks""".split()
BEHIND = "mdQaccum mdQ scale mCuSeqlensQ mSeqUsedQ sink_tensors mCuTotalMBlocks".split()
SIGNATURES = {
    "forward": """mQ mK mV mO mLSE softmax_scale mCuSeqlensQ mCuSeqlensK mSeqUsedQ mSeqUsedK mPageTable window_size_left
window_size_right learnable_sink blocksparse_tensors aux_data mCuTotalMBlocks mCuTotalSplitsMBlocks""".split(),
    "backward": BACKWARD, "backward_deterministic": BACKWARD, "behind_backward_q": BEHIND, "behind_backward_kv": BEHIND}


def signature(content):
    """The names of the arguments, which the file of a kernel has for its refusals; empty if it has none."""
    found = re.search(rb"__call__\(([\x20-\x7e]*?)\)`", content)
    return re.findall(r"(?:^|, )(\w+): ", found[1].decode()) if found else []


class BadInput(Exception):
    """One line for the user."""


def versions():
    try:
        return {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError as fault:
        raise BadInput(f"kernels of FlashAttention 4 need the package {fault.name}: {INSTALL}") from None


def c_compiler():
    compiler = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None or shutil.which(compiler) is None:
        raise BadInput(f"{compiler or 'cc'} is not found: a C compiler links the kernels; CC may name it")
    return compiler


def runtime_archive(cuda):
    """The compiler's static archive for CUDA of this major version."""
    found = importlib.util.find_spec("nvidia_cutlass_dsl")
    for package in found.submodule_search_locations if found else ():
        archive = Path(package) / f"cu{cuda}" / "lib" / "libcuda_dialect_runtime_static.a"
        if archive.is_file():
            return archive
    raise BadInput(f"nvidia-cutlass-dsl has no run-time library for CUDA {cuda}: pip install 'nvidia-cutlass-dsl[cu{cuda}]'")


def requirements(torch):
    """(the packages' versions, the C compiler, CUDA's major version, the archive for it): what compiling needs, or BadInput."""
    cuda = (torch.version.cuda or "13").split(".")[0]
    return versions(), c_compiler(), cuda, runtime_archive(cuda)


class Asked(dict):
    """A cache of compiled kernels by their keys, in place of one of the package's: notes what is asked for."""

    def __init__(self):
        super().__init__()
        self.keys_asked = []

    def __contains__(self, key):
        self.keys_asked.append(key)
        return super().__contains__(key)

    def kernels(self, call):
        """Those that a call asks for, in order."""
        self.keys_asked = []
        call()
        return [self[key] for key in self.keys_asked]


class Compiler:
    """Lets the package compile what calls with fake tensors ask for, and takes it out of its caches."""

    def __init__(self, head_dim, dtype, heads_of_a_key_head):
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            self.torch.cuda.current_device = lambda: 0  # all that compiling asks of a device
        self.attention = importlib.import_module("flash_attn.cute.interface")
        self.fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
        self.head_dim, self.dtype, self.group = head_dim, getattr(self.torch, dtype), heads_of_a_key_head
        attention = self.attention
        steps = (attention._flash_attn_fwd, attention._flash_attn_bwd, attention._bwd_preprocess,
                 attention._bwd_postprocess_convert)
        for step in steps:
            step.compile_cache = Asked()
        self.forward, self.backward, _, self.behind = (step.compile_cache for step in steps)

    def tensor(self, *shape, dtype=None):
        return self.torch.empty(*shape, dtype=dtype or self.dtype, device="cuda")

    def calls(self, mask):
        """Arguments of forward and backward. Their sizes are not compiled in."""
        sequences, rows, heads = 8, 1024, 2 * self.group
        q, k, v = (self.tensor(rows, count, self.head_dim) for count in (heads, 2, 2))
        lists = [self.tensor(sequences + more, dtype=self.torch.int32) for more in (1, 1, 0)]
        words = {"cu_seqlens_q": lists[0], "cu_seqlens_k": lists[1], "max_seqlen_q": 512, "max_seqlen_k": 512,
                 "softmax_scale": 0.1, "causal": mask == "causal"}
        if mask == "window":
            words |= {"window_size_left": 256, "window_size_right": 0}
        return q, k, v, lists[2], words

    def kernels_of(self, mask):
        """By name, and the tiles of backward."""
        attention = self.attention
        tiles = attention._tile_size_bwd_sm90(self.head_dim, self.head_dim, mask == "causal", mask == "window")
        with self.fake(allow_non_fake_inputs=True):
            q, k, v, used, words = self.calls(mask)
            [forward] = self.forward.kernels(
                lambda: attention._flash_attn_fwd(q, k, v, seqused_k=used, return_lse=True, **words))
            o, d_o = self.tensor(*q.shape), self.tensor(*q.shape)
            lse = self.tensor(q.shape[1], q.shape[0], dtype=self.torch.float32)
            made = {"forward": forward}
            for name, deterministic in (("backward", False), ("backward_deterministic", True)):
                self.behind.keys_asked = []
                [made[name]] = self.backward.kernels(
                    lambda: attention._flash_attn_bwd(q, k, v, o, d_o, lse, deterministic=deterministic, **words))
        # Of dQ, and where several heads share a key head of dK and dV.
        for name, key in zip(("behind_backward_q", "behind_backward_kv"), self.behind.keys_asked):
            made[name] = self.behind[key]
        return made, [tiles.m_block_size, tiles.n_block_size]


def link(compiler, archive, folder, objects):
    """Makes a shared object of each kernel."""
    interface = folder / "interface.c"
    interface.write_text(INTERFACE)
    for name in objects:
        made = folder / f"{name}.o"
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", folder / f"{name}.so", interface, made, archive,
             "-Wl,-Bsymbolic", "-Wl,--exclude-libs,ALL"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BadInput(f"{compiler} cannot link {name}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
        made.unlink()
    interface.unlink()


def build(out, arch, head_dim, dtype, heads_of_a_key_head):
    """Puts the kernels into the empty folder `out`."""
    warnings.simplefilter("ignore")  # of the packages, about their own sources
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    packages, compiler, cuda, archive = requirements(importlib.import_module("torch"))
    if (found := packages["flash-attn-4"]) != TRIED:
        print(f"{WARNING}flash-attn-4 {found} was not tried; tried: {TRIED}; pip install flash-attn-4=={TRIED} brings it",
              file=sys.stderr, flush=True)
    name, multiprocessors = ARCHITECTURES[arch]
    os.environ |= {"FLASH_ATTENTION_ARCH": arch, "CUTE_DSL_ARCH": name, "FLASH_ATTENTION_NUM_SMS": multiprocessors,
                   "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0"}
    made = Compiler(head_dim, dtype, heads_of_a_key_head)
    masks, objects = {}, {}
    for mask in MASKS:
        start = time.monotonic()
        with contextlib.redirect_stdout(sys.stderr):
            kernels, tiles = made.kernels_of(mask)
        files = {}
        for kernel, compiled in kernels.items():
            if id(compiled) not in objects:
                objects[id(compiled)] = f"{mask}_{kernel}"
                compiled.export_to_c(object_file_path=str(out / f"{mask}_{kernel}.o"), function_name="func")
            files[kernel] = f"{objects[id(compiled)]}.so"
        masks[mask] = {"tiles": tiles, "kernels": files}
        print(f"{mask}: {len(files)} kernels in {time.monotonic() - start:.1f} s", flush=True)
    link(compiler, archive, out, objects.values())
    for file, step in {(file, step) for of in masks.values() for step, file in of["kernels"].items()}:
        if signature((out / file).read_bytes()) != SIGNATURES[step]:
            raise BadInput(f"{step} of flash-attn-4 {packages['flash-attn-4']} takes other arguments than that of {TRIED}")
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.glob("*.so"))}
    manifest = {"format": FORMAT, "version": VERSION, "provider": "fa4", "packages": packages, "arch": name,
                "cuda": int(cuda), "head_dim": head_dim, "dtype": dtype, "heads_of_a_key_head": heads_of_a_key_head,
                "masks": masks, "sha256": hashes,
                "licences": {"flash-attn-4": "BSD 3-Clause", "nvidia-cutlass-dsl": "NVIDIA's, proprietary"}}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return sum(path.stat().st_size for path in out.iterdir())


def manifest_of(folder):
    """The contents of a folder's manifest.json; empty if it is damaged. Raises OSError."""
    try:
        found = json.loads((folder / "manifest.json").read_text())
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def check_ours(folder):
    """Raises BadInput unless a folder is missing, empty or of compiled kernels: nothing else is replaced."""
    try:
        is_ours = folder.is_dir() and manifest_of(folder).get("format") == FORMAT
    except OSError:
        is_ours = not any(folder.iterdir())
    if folder.exists() and not is_ours:
        raise BadInput(f"{folder} is no folder of compiled kernels, and is not replaced")


@contextlib.contextmanager
def alone(out):
    """Of those that make one folder, such as the ranks of a machine, one at a time."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.parent / f".{out.name}.lock"
    try:  # others may write to the folder, too: nothing that a link of theirs names is opened, and nothing is emptied
        file = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as fault:
        if fault.errno != errno.ELOOP:
            raise
        raise BadInput(f"{lock} is a link, which is not followed: remove it") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def main(out, arch, head_dim, dtype, heads_of_a_key_head, how):
    out = Path(out)
    if out.exists() and how == "keep":
        raise BadInput(f"{out} exists; --overwrite replaces it")
    if how == "overwrite":
        check_ours(out)
    start = time.monotonic()
    versions()
    with alone(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        if how == "share" and (out / "manifest.json").is_file():
            return  # another one was faster
        if how == "keep" and out.exists():
            raise BadInput(f"{out} exists; --overwrite replaces it")
        check_ours(out)
        made = Path(folder) / "made"
        made.mkdir()
        try:
            size = build(made, arch, int(head_dim), dtype, int(heads_of_a_key_head))
        except (BadInput, OSError):
            raise
        except Exception as fault:  # of the packages and their compiler
            raise BadInput(f"flash-attn-4 {versions()['flash-attn-4']} cannot be compiled as {TRIED} can: "
                           f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}") from fault
        if out.exists():
            out.rename(made.with_name("old"))
        made.rename(out)
    print(f"{out}: {size / 2**20:.1f} MiB in {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BadInput as fault:
        sys.exit(print(f"distca: error: {fault}", file=sys.stderr) or 2)
    except OSError as fault:
        sys.exit(print(f"distca: error: {fault}", file=sys.stderr) or 1)
