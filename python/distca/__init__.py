"""DistCA: core attention, cut into tasks and balanced over all ranks.

`distca.attention` computes it, `distca.plan` plans it and needs no PyTorch. docs/python.md of the project explains both.
What computes is loaded when it is first named; PyTorch is imported then.
"""

from importlib import import_module

from distca._build import VERSION as __version__

_MODULES = {
    "_attention": ("attention", "flash_attn_varlen_func", "dispatch", "core_attention", "combine", "Handle"),
    "_ahead": ("plan_ahead",),
    "_shard": ("shard", "unshard"),
    "_served": ("can_run",),
    "_verify": ("verify",),
    "_ping_pong": ("ping_pong",),
    "_group": ("init", "synchronize", "statistics", "alone", "report", "Report",
               "Statistics"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", "pieces", *_MODULE_OF]


def __getattr__(name):
    if name == "pieces":
        return import_module("distca.pieces")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'distca' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"distca.{_MODULE_OF[name]}"), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
