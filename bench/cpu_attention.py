"""DistCA's attention on the CPU, called with ctypes (kernel_calls.cc)."""

import ctypes
import pathlib

import torch

LIBRARY = ctypes.CDLL(str(pathlib.Path(__file__).parents[1] / "build/release/bench/libkernel_calls.so"))
_DOUBLE, _INT, _TEXT, _POINTER = ctypes.c_double, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
for _name, _result, *_arguments in (
        ("thread_pool", _POINTER, _INT), ("header", None, _TEXT, _TEXT), ("available", _INT, _TEXT),
        ("attention", _DOUBLE, _POINTER, _INT, _TEXT, _POINTER, _INT),
        ("multiply_adds", _DOUBLE, _TEXT, _INT, _INT, _POINTER, _INT, _POINTER)):
    getattr(LIBRARY, _name).restype, getattr(LIBRARY, _name).argtypes = _result, _arguments


class _Call(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("is_bf16", "heads", "kv_heads", "row_heads", "row_kv_heads", "dim", "queries",
                                                    "keys", "count")] + [
        (name, ctypes.c_void_p) for name in ("ranges", "q", "k", "v", "o", "lse", "d_o", "delta", "dq", "dk", "dv")]


class Attention:
    """A call of the kernel. ranges: rows of kernel_calls.cc; tensors: by the letters there, those that a pass takes."""

    def __init__(self, ranges, tensors, kv_heads=None):
        """kv_heads: how many of a row's are computed, all if it is not given."""
        assert all(tensor.is_contiguous() for tensor in tensors.values())
        self._kept = torch.tensor(ranges, dtype=torch.int64), tensors
        (queries, row_heads, dim), (keys, row_kv_heads, _) = tensors["q"].shape, tensors["k"].shape
        kv_heads = kv_heads or row_kv_heads
        is_bf16 = {torch.float32: 0, torch.bfloat16: 1}[tensors["q"].dtype]
        self._call = _Call(is_bf16, kv_heads * row_heads // row_kv_heads, kv_heads, row_heads,
                           row_kv_heads, dim, queries, keys, len(ranges), self._kept[0].data_ptr(),
                           **{name: tensor.data_ptr() for name, tensor in tensors.items()})

    def run(self, way, isa=None, pool=None, wall=False):
        """Seconds of "forward", or of "backward", which adds to dq, dk and dv."""
        return LIBRARY.attention(ctypes.byref(self._call), way == "backward", isa and isa.encode(), pool, wall)


def multiply_adds(isa, is_bf16, bursts, pool, wall=False):
    """(their number, seconds) of so many bursts on each thread of the pool, a fraction of a millisecond each."""
    flops = ctypes.c_double()
    seconds = LIBRARY.multiply_adds(isa.encode(), is_bf16, bursts, pool, wall, ctypes.byref(flops))
    return flops.value, seconds
