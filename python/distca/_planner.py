"""The functions of the planner's library (python/planner_library.h of the project) with Python's types."""

import ctypes

from distca import _library

_TEXT, _PLAN, _INT64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
# What they return and take. A text that comes back is a pointer, because it has to be given back.
_TO = ctypes.POINTER(ctypes.c_void_p)
LIBRARY = _library.load("libdistca_planner.so", {
    "distca_plan_batch": (ctypes.c_int, _TEXT, _INT64, _TO, _TO),
    "distca_read_plan": (ctypes.c_int, _TEXT, _INT64, _TO, _TO),
    "distca_plan_json": (ctypes.c_int, _PLAN, _TO),
    "distca_plan_tokens": (ctypes.c_int, _PLAN, _TO),
    "distca_free_plan": (None, _PLAN),
    "distca_free_text": (None, ctypes.c_void_p),
})


class PlanError(ValueError):
    """What was asked for cannot be planned. The message is one line: what is wrong, and what would be right."""

    __module__ = "distca.plan"


def call(function, *arguments):
    """The text that the function answers. Raises PlanError, or RuntimeError where the caller is not at fault."""
    answer = ctypes.c_void_p()
    code = getattr(LIBRARY, function)(*arguments, ctypes.byref(answer))
    text = ctypes.string_at(answer).decode(errors="replace") if answer else ""
    LIBRARY.distca_free_text(answer)
    if code:
        raise (PlanError if code == 2 else RuntimeError)(text or "distca: error: out of memory")
    return text
