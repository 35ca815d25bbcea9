"""FlashAttention 4's kernels for a layer: found where `distca kernels build` puts them, else compiled there once."""

import importlib.util
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

from distca._kernels import FORMAT, INSTALL, VERSION, WARNING, BadInput, check_ours, manifest_of, requirements
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
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("flash_attn", "flash_attn.cute"))
    except Exception as fault:  # of flash_attn itself, which the search for a package within imports
        why = f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"
        raise BadInput(f"the package flash_attn cannot be imported ({why}), and FlashAttention 4 lies in it: "
                       f"pip uninstall flash-attn, then {INSTALL}") from None


@cache  # an answer, not a refusal
def _check(folder, words):
    """Raises BadInput unless a folder has kernels, or they can be compiled: all that is known before."""
    file = folder / "manifest.json"
    try:
        manifest = manifest_of(folder)
    except (FileNotFoundError, NotADirectoryError):
        if not _is_importable():
            raise BadInput(f"there is no {folder}: {INSTALL}, or {words} elsewhere") from None
        check_ours(folder)
        requirements(torch)
    except OSError as fault:
        raise BadInput(f"{file} cannot be read: {fault.strerror}") from None
    else:
        if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
            raise BadInput(f"{file} is damaged, or not of version {VERSION}: remove {folder}, and build it again")


def _why_not(head_dim, dtype, heads_of_a_key_head, capability, head_dim_v) -> str:
    if capability != (9, 0):
        return f"kernel = 'fa4' is for Hopper (sm_90), and the device is sm_{capability[0]}{capability[1]}"
    if head_dim not in (64, 128) or head_dim_v != head_dim:  # others pad their sums
        return f"kernel = 'fa4' computes head_dim 64 or 128, the same of q, k and v, not {head_dim} and {head_dim_v}"
    try:
        _check(_folder(head_dim, dtype, heads_of_a_key_head),
               f"distca kernels build --head-dim {head_dim} --qheads-per-kvhead {heads_of_a_key_head}")
    except BadInput as fault:
        return f"kernel = 'fa4': {fault}"
    return ""


@cache
def _build_if_missing(head_dim, dtype, heads_of_a_key_head, capability):
    folder = _folder(head_dim, dtype, heads_of_a_key_head)
    if (folder / "manifest.json").is_file():
        return
    words = [folder, f"sm_{capability[0]}{capability[1]}", head_dim, dtype, heads_of_a_key_head, "share"]
    # In a process of its own: compiling takes the package's caches apart. Other ranks of the machine wait for it.
    done = subprocess.run([sys.executable, Path(__file__).with_name("_kernels.py"), *map(str, words)], capture_output=True,
                          text=True, check=False)
    said = done.stderr.strip().splitlines()
    if done.returncode:
        reasons = [line for line in said if not line.startswith(WARNING)]
        if done.returncode < 0:
            reasons.append(f"the compiler was killed by signal {-done.returncode}")
        raise ValueError(f"kernel = 'fa4': {(reasons or ['no reason given'])[-1]}")
    for line in said:
        if line.startswith(WARNING):
            warnings.warn(f"kernel = 'fa4': {line.removeprefix(WARNING)}", stacklevel=2)
