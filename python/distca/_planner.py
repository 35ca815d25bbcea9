"""The functions of the planner's library (python/planner_library.h of the project) with Python's types."""

import ctypes
from array import array

from distca import _library

_POINTER = ctypes.POINTER(ctypes.c_int64)
_TEXT, _PLAN, _INT64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
# What they return and take. A text that comes back is a pointer, because it has to be given back.
_TO = ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS = {
    "distca_plan_batch": (ctypes.c_int, _TEXT, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _TO, _TO),
    "distca_read_plan": (ctypes.c_int, _TEXT, _INT64, _TO, _TO),
    "distca_plan_json": (ctypes.c_int, _PLAN, _TO),
    "distca_plan_summary": (ctypes.c_int, _PLAN, _TO),
    "distca_plan_num_ranges": (_INT64, _PLAN, _POINTER),
    "distca_plan_tokens": (None, _PLAN, _POINTER),
    "distca_free_plan": (None, _PLAN),
    "distca_free_text": (None, ctypes.c_void_p),
}


def _load():
    library = _library.load("libdistca_planner.so")
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()


class PlanError(ValueError):
    """What was asked for cannot be planned. The message is one line: what is wrong, and what would be right."""

    __module__ = "distca.plan"


class Plan:
    """A plan in the library's memory, which is given back with the last reference to it."""

    def __init__(self, function: str, *arguments):
        self._plan = ctypes.c_void_p()
        _call(function, *arguments, ctypes.byref(self._plan))

    @staticmethod
    def of_batch(request: bytes, cu_seqlens: array, tokens: array, num_ranges: array) -> "Plan":
        """Of the request as JSON; the arrays hold int64. Raises PlanError."""
        return Plan("distca_plan_batch", request, _pointer(cu_seqlens), len(cu_seqlens), _pointer(tokens),
                    _pointer(num_ranges), len(num_ranges))

    @staticmethod
    def of_json(text: bytes) -> "Plan":
        """Raises PlanError."""
        return Plan("distca_read_plan", text, len(text))

    def json(self) -> str:
        return _call("distca_plan_json", self._plan)

    def summary(self) -> str:
        """A JSON object."""
        return _call("distca_plan_summary", self._plan)

    def tokens(self, num_ranks: int) -> tuple[array, array]:
        """[ranges, 2] the begin and end of each range of tokens, rank by rank; [num_ranks] the ranges of each rank."""
        num_ranges = array("q", bytes(8 * num_ranks))
        ranges = array("q", bytes(16 * _LIBRARY.distca_plan_num_ranges(self._plan, _pointer(num_ranges))))
        _LIBRARY.distca_plan_tokens(self._plan, _pointer(ranges))
        return ranges, num_ranges

    def __del__(self, free=_LIBRARY.distca_free_plan):  # bound here: at the end of the process, globals are gone
        free(self._plan)


def _call(function, *arguments):
    """The text that the function answers. Raises PlanError, or RuntimeError where the caller is not at fault."""
    answer = ctypes.c_void_p()
    code = getattr(_LIBRARY, function)(*arguments, ctypes.byref(answer))
    text = ctypes.string_at(answer).decode(errors="replace") if answer else ""
    _LIBRARY.distca_free_text(answer)
    if code:
        raise (PlanError if code == 2 else RuntimeError)(text or "distca: error: out of memory")
    return text


def _pointer(values):
    """To the numbers of an array of int64."""
    return ctypes.cast(values.buffer_info()[0], _POINTER)
