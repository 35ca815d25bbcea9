"""Plans the core attention of a packed batch. It needs no PyTorch.

A plan says which tokens each rank holds and which (query, key) pairs each rank computes:

    from distca.plan import Shape, plan_batch

    plan = plan_batch([0, 6000, 6500, 7000, 7900, 8192],  # five documents
                      num_ranks=4, shape=Shape(num_heads=32, num_kv_heads=8, head_dim=128))
    for rank, ranges in enumerate(plan.tokens):
        print(f"rank {rank} holds", *(f"tokens {begin} to {end - 1}" for begin, end in ranges))
    print(f"busiest rank / mean: {plan.max_over_mean:.3f}, plan {plan.hash}")

A plan is a pure function of the arguments. So every rank can make the plan for itself, and all plans have the same
hash. Any thread may call anything here; while the planner works, other threads of Python run.
"""

import ctypes
import json
import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from distca import _library

__all__ = ["BatchPlan", "PlanError", "Range", "Shape", "plan_batch"]

# The functions of the planner's library (python/planner_library.h of the project), what they return and take. A text that
# comes back is a pointer, because it has to be given back.
_TEXT, _PLAN, _INT64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
_TO = ctypes.POINTER(ctypes.c_void_p)
_LIBRARY = _library.load("libdistca_planner.so", {
    "distca_plan_batch": (ctypes.c_int, _TEXT, _INT64, _TO, _TO),
    "distca_read_plan": (ctypes.c_int, _TEXT, _INT64, _TO, _TO),
    "distca_plan_json": (ctypes.c_int, _PLAN, _TO),
    "distca_plan_tokens": (ctypes.c_int, _PLAN, _TO),
    "distca_free_plan": (None, _PLAN),
    "distca_free_text": (None, ctypes.c_void_p),
})


class PlanError(ValueError):
    """What was asked for cannot be planned. The message is one line: what is wrong, and what would be right."""


class Shape(NamedTuple):
    """The core attention of one layer as one rank sees it. Under tensor parallelism, give the heads of one rank."""

    num_heads: int
    """The number of heads of Q, a multiple of num_kv_heads."""
    num_kv_heads: int
    """The number of heads of K and V: num_heads for MHA, fewer for GQA, 1 for MQA."""
    head_dim: int
    """The size of a head of Q and K, a multiple of 8."""
    head_dim_v: int = 0
    """The size of a head of V and O, a multiple of 8. 0 means head_dim."""
    dtype: Any = "bfloat16"
    """The type of Q, K, V, O and their gradients: "float64", "float32" or "bfloat16", or PyTorch's of that name."""


class Range(NamedTuple):
    """The tokens begin, begin + 1, ..., end - 1 of the packed batch of all ranks."""

    begin: int
    end: int


def plan_batch(cu_seqlens: Sequence[int], num_ranks: int, shape: Shape, *, window_size: tuple[int, int] = (-1, -1),
               tokens: Sequence[Sequence[tuple[int, int]]] | None = None, num_holders: int = 0,
               capacity: Sequence[int] | None = None, linear_work: int = 0, scheduler: str = "balanced",
               tolerance: float | None = None, split_kv: bool = False) -> "BatchPlan":
    """Makes the plan of a packed batch and checks it.

    Sequences of integers may be lists, arrays, or tensors; those of a tensor on a device are copied to the host.

    cu_seqlens: [documents + 1] the places at which the documents begin in the packed batch of all ranks, in tokens,
        and the place at which the last one ends. As in flash-attn, the first is 0 and none is below the one before it.
        A token attends to itself and to earlier tokens of its own document.
    num_ranks: how many ranks compute.
    window_size: (left, right) as in flash-attn: how many keys before and after its own position a query sees. -1 for
        left means all of its document. Attention is causal, so right is 0, or -1, which means the same. In Hugging
        Face's terms, left is sliding_window - 1. A model whose layers have several windows makes one plan for each,
        all with the same `tokens`.
    tokens: [num_ranks] the tokens that each rank holds: ranges (begin, end) of the packed batch, in the order in which
        they lie in the rank's tensors. Ranks may hold unequal numbers of tokens, or none. Every token is held exactly
        once. A document may be cut at any token. None: the planner chooses, and gives each rank equally many tokens.
    num_holders: if the planner chooses the tokens, only ranks 0 .. num_holders - 1 hold any, and the other ranks
        compute for them. 0 means that all ranks hold tokens.
    capacity: [num_ranks] each rank's share of the computation, in any unit. A rank with 0 computes nothing, not even
        for its own tokens. None means equal shares.
    linear_work: the multiply-adds of a layer that are not core attention, for each token on the rank that holds it.
        Where it is given, ranks with fewer tokens compute more attention, so that all ranks are done with both
        together. It takes the place of `capacity`. Give it if linear work of one nano-batch runs beside the attention
        of another one. 0 evens out attention alone.
    scheduler: "balanced" gives equal computation for the fewest bytes. "greedy" is that of the paper. "local" computes
        every query where it is held, so no queries travel.
    tolerance: by how much the busiest rank may exceed its share: 0.05 means 5 %. A higher tolerance needs fewer bytes.
        None means the scheduler's own, which is 0.02 for "balanced".
    split_kv: whether a task may have only some of its queries' keys, and partial results are merged by log-sum-exp.
        That needs fewer bytes, but the bits of O then depend on the plan. Only "balanced" can do it.

    Raises PlanError.
    """
    window_left = _window_left(window_size)
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise PlanError(f"tolerance = {tolerance}: 0 or more, or None for the scheduler's own")
    if not isinstance(shape, Shape):
        raise PlanError(f"shape = {shape!r}: a Shape(num_heads, num_kv_heads, head_dim)")
    dtype = str(shape.dtype).removeprefix("torch.")
    request = {
        "cu_seqlens": _integers(cu_seqlens, "cu_seqlens"),
        "tokens": _flat(tokens),
        "num_ranks": num_ranks,
        "shape": {**shape._asdict(), "dtype": dtype},
        "window_left": window_left,
        "num_holders": num_holders,
        "capacity": [] if capacity is None else _integers(capacity, "capacity"),
        "linear_work": linear_work,
        "scheduler": scheduler,
        "split_kv": split_kv,
    }
    if tolerance is not None:
        request["tolerance"] = tolerance
    return BatchPlan("distca_plan_batch", _json(request))


class BatchPlan:
    """A plan that the validator has checked. plan_batch() and from_json() make it.

    It is a value that never changes, and it can be copied and pickled.
    """

    num_ranks: int
    """The number of ranks that compute."""
    max_over_mean: float
    """The (query, key) pairs of the busiest rank, divided by its share of all pairs by capacity. 1 is perfect."""
    hash: str
    """16 hex digits that are equal where plans are equal. Ranks compare them before they follow a plan."""

    def __init__(self, function: str, text: bytes):
        self._plan = ctypes.c_void_p()  # in the library's memory
        self._tokens: list[list[Range]] | None = None
        summary = _call(function, text, len(text), ctypes.byref(self._plan))
        vars(self).update(json.loads(summary))

    def __del__(self, free=_LIBRARY.distca_free_plan):  # bound here: at the end of the process, globals are gone
        free(self._plan)

    @staticmethod
    def from_json(text: str) -> "BatchPlan":
        """Reads what json() returned. Raises PlanError, which names the first field that is missing or wrong."""
        return BatchPlan("distca_read_plan", text.encode(errors="replace"))

    @property
    def tokens(self) -> list[list[Range]]:
        """[num_ranks] The tokens that each rank holds, in the order in which they lie in the rank's tensors."""
        if self._tokens is None:
            tokens = json.loads(_call("distca_plan_tokens", self._plan))
            self._tokens = [list(map(Range, of_rank[::2], of_rank[1::2])) for of_rank in tokens]
        return self._tokens

    def num_tokens(self, rank: int) -> int:
        """The number of tokens that the rank holds."""
        return sum(end - begin for begin, end in self.tokens[rank])

    def json(self) -> str:
        """The plan as canonical JSON (docs/plan_format.md of the project), to be handed to another process."""
        return _call("distca_plan_json", self._plan)

    def __repr__(self) -> str:
        return f"BatchPlan(num_ranks={self.num_ranks}, max_over_mean={self.max_over_mean:.3f}, hash={self.hash!r})"

    def __reduce__(self):
        return BatchPlan.from_json, (self.json(),)


def _call(function, *arguments):
    """The text that the function answers. Raises PlanError, or RuntimeError where the caller is not at fault."""
    answer = ctypes.c_void_p()
    code = getattr(_LIBRARY, function)(*arguments, ctypes.byref(answer))
    text = ctypes.string_at(answer).decode(errors="replace") if answer else ""
    _LIBRARY.distca_free_text(answer)
    if code:
        raise (PlanError if code == 2 else RuntimeError)(text or "distca: error: out of memory")
    return text


def _window_left(window_size) -> int:
    try:
        left, right = window_size
        if left >= -1 and right in (-1, 0):
            return left
    except (TypeError, ValueError):
        pass
    raise PlanError(f"window_size = {window_size}: (left, right) with left 0 or more, or -1 for the whole document, "
                    "and right 0 or -1, for attention is causal")


def _integers(values, name: str) -> list:
    """Integers of 64 bits."""
    values = values.tolist() if hasattr(values, "tolist") else values  # of an array or a tensor
    try:
        return array("q", list(values)).tolist()
    except (TypeError, OverflowError):
        raise PlanError(f"{name}: a sequence of integers, not {repr(values)[:60]}") from None


def _flat(tokens) -> list:
    """[num_ranks] Begin and end of each range, one behind the other; empty where the planner chooses."""
    if tokens is None:
        return []
    try:
        flat = [array("q", [number for begin, end in of_rank for number in (begin, end)]).tolist() for of_rank in tokens]
    except (TypeError, ValueError, OverflowError):
        raise PlanError(f"tokens: for each rank a list of ranges (begin, end), not {repr(tokens)[:60]}") from None
    if not flat:
        raise PlanError("tokens: of no rank; None lets the planner choose")
    return flat


def _json(request) -> bytes:
    """Numbers of an array's or a tensor's type are written, too."""

    def plain(value):
        if hasattr(value, "item"):
            return value.item()
        raise PlanError(f"plan_batch: {repr(value)[:60]} is neither a number nor a name")

    try:
        return json.dumps(request, default=plain, allow_nan=False).encode()
    except PlanError:  # a ValueError, too
        raise
    except ValueError:  # what is not finite is no JSON
        wrong = [f"{name} = {value}" for name, value in {**request, **request["shape"]}.items()
                 if not isinstance(value, dict) and str(value) in ("inf", "-inf", "nan")]
        raise PlanError(f"{', '.join(wrong) or 'plan_batch'}: a finite number") from None
