"""Calls of compiled kernels as distca/runtime/cuda/flash4_operator.cc makes them: which arguments in which order, for
launches whose tensors exist by address alone. They are made through the C interface of TVM FFI.
"""

import ctypes
import dataclasses

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
        strides, next_one = [], 1
        for size in reversed(self.sizes):
            strides.insert(0, next_one)
            next_one *= max(size, 1)
        return [stride + (self.gap if i == 0 else 0) for i, stride in enumerate(strides)]


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
        """All that a step is called with."""
        make = {"forward": self.forward, "behind": self.behind}.get(step.partition("_")[0], self.backward)
        self.launch, self.step, self.count = launch, step, 0
        self.heads = launch.key_heads * self.group
        self.rows, self.key_rows = sum(launch.queries), sum(launch.keys)
        self.sequences = len(launch.queries)
        return make()

    def blocks(self, step, launch):
        """At least so many blocks of the grid have work, except in forward, whose tile is the kernel's own."""
        heads = launch.key_heads * self.group
        lengths, tile, of = {"behind_backward_q": (launch.queries, self.query_tile, heads),
                             "behind_backward_kv": (launch.keys, self.key_tile, launch.key_heads)}.get(
                                 step, (launch.keys, self.key_tile, heads))
        return sum(-(-length // tile) for length in lengths) * of

    def tensor(self, name, *sizes, dtype=None, gap=0):
        self.count += 1
        # Lists lie one behind the other, so at any multiple of 4.
        address = ((0x70_0000 + 0x100 * self.count) << 24) + 4 * (dtype == "int32")
        return Tensor(name, sizes, dtype or self.dtype, address, gap=gap)

    # Rows where they lie, maybe among other rows: those that are read, and O where it belongs.
    def queries(self, name):
        return self.tensor(name, self.rows, self.heads, self.head_dim, gap=64)

    def keys(self, name):
        return self.tensor(name, self.key_rows, self.launch.key_heads, self.head_dim, gap=64)

    def numbers(self, name, *sizes):
        return self.tensor(name, *sizes, dtype="float32")

    def list(self, name, count):
        return self.tensor(name, count, dtype="int32")

    def padded(self, rows, tile):
        return (rows + tile * (self.sequences + 1) - 1) // tile * tile

    def window(self):
        return [WINDOW, 0] if self.mask == "window" else [None, None]

    def forward(self):
        return [self.queries("q"), self.keys("k"), self.keys("v"), self.queries("o"), self.numbers("lse", self.heads, self.rows), SCALE, self.list("cu_seqlens_q", self.sequences + 1),
                self.list("key_starts", self.sequences + 1), None, self.list("keys_used", self.sequences), None,
                *self.window(), None, None, NONES, None, None]

    def sums_of_keys(self, name):
        if self.group == 1:
            return self.tensor(name, self.key_rows, self.launch.key_heads, self.head_dim)
        return self.numbers(name, self.launch.key_heads, self.padded(self.key_rows, self.key_tile) * self.head_dim)

    def backward(self):
        padded = self.padded(self.rows, self.query_tile)
        return [self.queries("q"), self.keys("k"), self.keys("v"), self.queries("d_o"),
                self.numbers("scaled_lse", self.heads, padded), self.numbers("delta", self.heads, padded),
                self.numbers("dq", self.heads, padded * self.head_dim), self.sums_of_keys("dk"),
                self.sums_of_keys("dv"), SCALE, self.list("cu_seqlens_q", self.sequences + 1),
                self.list("cu_seqlens_k", self.sequences + 1), None, None, *self.window(), *self.orders(), NONES,
                None, None]

    def orders(self):
        """Turns of blocks, where gradients are added in the same order each time."""
        if self.step != "backward_deterministic":
            return [None, None, None]
        blocks = [-(-max(lengths) // tile) for lengths, tile in ((self.launch.queries, self.query_tile),
                                                                 (self.launch.keys, self.key_tile))]
        of_q = self.tensor("dq_order", self.sequences, self.heads, blocks[0], 1, dtype="int32")
        if self.group == 1:
            return [of_q, None, None]
        return [of_q] + [self.tensor(name, self.sequences, self.launch.key_heads, blocks[1], 2, dtype="int32")
                         for name in ("dk_order", "dv_order")]

    def behind(self):
        of_q = self.step == "behind_backward_q"
        name, rows, heads, tile = (("dq", self.rows, self.heads, self.query_tile) if of_q else
                                   ("dk", self.key_rows, self.launch.key_heads, self.key_tile))
        result = self.tensor(name, rows, heads, self.head_dim)
        return [self.numbers("sums", heads, self.padded(rows, tile) * self.head_dim), result, SCALE,
                self.list("starts", self.sequences + 1), None, None, None]


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
