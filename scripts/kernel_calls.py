"""Calls of compiled kernels as distca/runtime/cuda/flash4_operator.cc makes them: which arguments in which order, for
launches whose tensors exist by address alone. They are made through the C interface of TVM FFI.
"""

import ctypes
import dataclasses
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python/distca"))
from _kernels import SIGNATURES  # noqa: E402

NONE, INTEGER, NUMBER, TENSOR, LIST = 0, 1, 3, 7, 71  # kinds of a value
CPU, CUDA = 1, 2
TYPES = {"int32": (0, 32), "int64": (0, 64), "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16)}
SCALE = 0.125
WINDOW = 100  # keys to the left
NONES = (None, None)  # a list


class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Held(ctypes.Union):
    _fields_ = [("integer", ctypes.c_int64), ("number", ctypes.c_double), ("pointer", ctypes.c_void_p)]


class Value(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("zero", ctypes.c_uint32), ("held", Held)]


class List(ctypes.Structure):
    _fields_ = [("references", ctypes.c_uint64), ("kind", ctypes.c_int32), ("zero", ctypes.c_uint32),
                ("deleter", ctypes.c_void_p), ("data", ctypes.POINTER(Value)), ("size", ctypes.c_int64),
                ("capacity", ctypes.c_int64), ("data_deleter", ctypes.c_void_p)]


@dataclasses.dataclass(frozen=True)
class Tensor:
    name: str
    sizes: tuple
    dtype: str
    address: int
    device: int = CUDA
    gap: int = 0  # numbers between rows

    def strides(self):
        return [math.prod(max(size, 1) for size in self.sizes[i + 1:]) + self.gap * (i == 0) for i in range(len(self.sizes))]


@dataclasses.dataclass(frozen=True)
class Launch:
    """Sequences of a launch."""

    name: str
    queries: tuple
    keys: tuple
    key_heads: int = 2
    key_starts: tuple = ()  # forward: in any order; empty: one after another


# Sequences without queries, without keys, of one row and of several blocks; then a size of 1 wherever there may be one.
LAUNCHES = (
    Launch("uneven", (5, 0, 700, 64, 1), (300, 40, 1025, 0, 1)),
    Launch("unordered", (128, 64), (256, 512), key_starts=(512, 0, 768)),
    Launch("one", (1,), (1,), key_heads=1),
)


class Caller:
    """The arguments of the steps of one mask."""

    def __init__(self, manifest, mask):
        self.mask = mask
        self.head_dim, self.group = manifest["head_dim"], manifest["heads_of_a_key_head"]
        self.dtype = manifest["dtype"]
        self.query_tile, self.key_tile = manifest["masks"][mask]["tiles"]

    def arguments(self, step, launch):
        """All that a step is called with, in the order of its signature: nothing where no name below has a value."""
        rows, key_rows, sequences, size = sum(launch.queries), sum(launch.keys), len(launch.queries), self.head_dim
        heads, key_heads, is_shared = launch.key_heads * self.group, launch.key_heads, self.group > 1
        of_forward, of_keys = step == "forward", step == "behind_backward_kv"
        query_sums, key_sums = ((count + tile * (sequences + 1) - 1) // tile * tile
                                for count, tile in ((rows, self.query_tile), (key_rows, self.key_tile)))
        queries, keys, sums_of_keys = (rows, heads, size), (key_rows, key_heads, size), (key_heads, key_sums * size)
        # Rows where they lie, maybe among other rows: those that are read, and O where it belongs.
        lying = {"mQ": queries, "mK": keys, "mV": keys, "mO": queries, "mdO": queries}
        results = {"mdQ": keys if of_keys else queries}
        numbers = {"mLSE": (heads, rows if of_forward else query_sums), "mdPsum": (heads, query_sums),
                   "mdQaccum": sums_of_keys if of_keys else (heads, query_sums * size)}
        lists = {"mCuSeqlensQ": (sequences + 1,), "mCuSeqlensK": (sequences + 1,)}
        values = {"softmax_scale": SCALE, "scale": SCALE, "aux_data": NONES}
        for name in ("mdK", "mdV"):
            (numbers if is_shared else results)[name] = sums_of_keys if is_shared else keys
        if of_forward:
            lists["mSeqUsedK"] = (sequences,)
        if step == "backward_deterministic":  # turns of blocks: gradients are added in the same order each time
            blocks, key_blocks = -(-max(launch.queries) // self.query_tile), -(-max(launch.keys) // self.key_tile)
            lists["mdQ_semaphore"] = (sequences, heads, blocks, 1)
            lists |= dict.fromkeys(("mdK_semaphore", "mdV_semaphore") if is_shared else (), (sequences, key_heads, key_blocks, 2))
        if self.mask == "window":
            values |= {"window_size_left": WINDOW, "window_size_right": 0}
        for of_kind, dtype, gap in ((lying, self.dtype, 64), (results, self.dtype, 0), (numbers, "float32", 0), (lists, "int32", 0)):
            for name, sizes in of_kind.items():  # lists lie one behind the other, so at any multiple of 4
                address = ((0x70_0000 + 0x100 * len(values)) << 24) + 4 * (dtype == "int32")
                values[name] = Tensor(name, sizes, dtype, address, gap=gap)
        return [values.get(name) for name in SIGNATURES[step]]

    def blocks(self, step, launch):
        """At least so many blocks of the grid have work, except in forward, whose tile is the kernel's own."""
        lengths, tile = (launch.queries, self.query_tile) if step == "behind_backward_q" else (launch.keys, self.key_tile)
        heads = launch.key_heads * (1 if step == "behind_backward_kv" else self.group)
        return sum(-(-length // tile) for length in lengths) * heads


def packed(arguments):
    """An array of values, and all that has to live as long."""
    values, kept = (Value * len(arguments))(), []
    for value, argument in zip(values, arguments):
        if isinstance(argument, Tensor):
            count = len(argument.sizes)
            sizes, strides = (ctypes.c_int64 * count)(*argument.sizes), (ctypes.c_int64 * count)(*argument.strides())
            code, bits = TYPES[argument.dtype]
            kept.append(DlTensor(argument.address, argument.device, 0, count, code, bits, 1, sizes, strides, 0))
            value.kind, value.held.pointer = TENSOR, ctypes.addressof(kept[-1])
        elif argument is NONES:
            kept.append(List(1, LIST, 0, None, (Value * len(NONES))(), len(NONES), len(NONES), None))
            value.kind, value.held.pointer = LIST, ctypes.addressof(kept[-1])
        elif isinstance(argument, int):
            value.kind, value.held.integer = INTEGER, argument
        elif isinstance(argument, float):
            value.kind, value.held.number = NUMBER, argument
    return values, kept


def wrong(arguments):
    """Arguments with one fault each: (what is wrong, the arguments, how the kernel's refusal begins and ends)."""
    places = [i for i, argument in enumerate(arguments) if isinstance(argument, Tensor)]
    first, last = places[0], places[-1]
    integers = next(i for i in places if arguments[i].dtype == "int32")

    def but(place, **changes):
        other = list(arguments)
        other[place] = dataclasses.replace(other[place], **changes)
        return other

    mismatch = "Mismatched Tensor on argument #{}"
    yield "an argument less", arguments[:-1], f"Expects {len(arguments)} parameters", ""
    yield "another type", but(first, dtype="float16"), mismatch.format(first), "dtype="
    yield "a list of int64", but(integers, dtype="int64"), mismatch.format(integers), "dtype=int32"
    yield ("an address off its alignment", but(first, address=arguments[first].address + 2),
           f"Misaligned Tensor data on argument #{first}", "alignment=")
    yield "a tensor of the CPU", but(first, device=CPU), mismatch.format(first), "device_type=cuda"
    yield "a dimension less", but(last, sizes=arguments[last].sizes[:-1]), mismatch.format(last), "ndim="
    missing = [None if i == first else argument for i, argument in enumerate(arguments)]
    yield "no tensor", missing, f"Mismatched type on argument #{first}", "expected Tensor"
