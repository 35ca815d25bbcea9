"""FlashAttention 4's kernels for a layer: found where `distca kernels build` puts them, else compiled there once."""

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from distca._kernels import HEAD_DIMS, INSTALL
from distca._ops import ops


def why_not(q, k, v) -> str:
    """Of a layer's tensors [tokens, heads, head_dim] on a CUDA device. Why its kernels are not there and cannot be made; or ""."""
    return _why_not(*_asked(q, k), v.shape[2])


def build_if_missing(q, k):
    """Compiles the kernels of a layer that `why_not` has nothing against. Raises ValueError, in one line, if that fails."""
    _build_if_missing(*_asked(q, k))


def _asked(q, k):
    return (q.shape[2], str(q.dtype).removeprefix("torch."), q.shape[1] // k.shape[1],
            torch.cuda.get_device_capability(q.device))


def _folder(head_dim, dtype, heads_of_a_key_head) -> Path:
    return Path(ops.kernels_folder(head_dim, dtype, heads_of_a_key_head))


def _is_importable() -> bool:
    return importlib.util.find_spec("flash_attn") is not None and importlib.util.find_spec("flash_attn.cute") is not None


def _why_not(head_dim, dtype, heads_of_a_key_head, capability, head_dim_v) -> str:
    if capability != (9, 0):
        return f"kernel = 'fa4' is for Hopper (sm_90), and the device is sm_{capability[0]}{capability[1]}"
    if str(head_dim) not in HEAD_DIMS or head_dim_v != head_dim:
        return f"kernel = 'fa4' computes head_dim 64 or 128, the same of q, k and v, not {head_dim} and {head_dim_v}"
    folder = _folder(head_dim, dtype, heads_of_a_key_head)
    if (folder / "manifest.json").is_file() or _is_importable():
        return ""
    return (f"kernel = 'fa4': there is no {folder}: {INSTALL}, or distca "
            f"kernels build --head-dim {head_dim} --qheads-per-kvhead {heads_of_a_key_head} elsewhere")


@cache
def _build_if_missing(head_dim, dtype, heads_of_a_key_head, capability):
    folder = _folder(head_dim, dtype, heads_of_a_key_head)
    if (folder / "manifest.json").is_file():
        return
    words = [folder, f"sm_{capability[0]}{capability[1]}", head_dim, dtype, heads_of_a_key_head, "share"]
    # In a process of its own: compiling takes the package's caches apart. Other ranks of the machine wait for it.
    done = subprocess.run([sys.executable, Path(__file__).with_name("_kernels.py"), *map(str, words)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise ValueError(f"kernel = 'fa4': {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
