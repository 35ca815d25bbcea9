"""Which versions of PyTorch, Transformers and Megatron-Core distca works with, and the one line that says so of others.

CMake reads TORCH, too: what is built is built against one of these.
"""

import importlib

from distca import _build

TORCH = ("2.11", "2.13")  # the oldest and the newest minor version
TRANSFORMERS = ("5.23", "5.23")
MEGATRON = ("0.16", "0.16")


def require_transformers():
    """Raises ImportError in one line unless a Transformers that distca was tried with is installed."""
    _require("transformers", "Transformers", TRANSFORMERS)


def require_megatron():
    """Raises ImportError in one line unless a Megatron-Core that distca was tried with is installed."""
    _require("megatron.core", "Megatron-Core", MEGATRON)


def require_torch():
    """Raises ImportError in one line unless the PyTorch that is installed is the one that distca was built for.

    PyTorch promises no binary interface between minor versions, so what is built fits one of them. What needs PyTorch
    calls this before it loads a library.
    """
    if not _build.TORCH:
        raise ImportError("this distca was built without PyTorch: it can plan (distca.plan) and no more")
    found = _require("torch", "PyTorch", TORCH)
    built = _build.TORCH
    if _minor(found) != _minor(built):
        raise ImportError(
            f"this distca was built for PyTorch {built} and fits no other minor version, but {found} is installed: "
            "build distca again, pip install --no-build-isolation --force-reinstall DISTCA")


def _require(package, name, accepted):
    """The version of the installed package, which lies in `accepted`."""
    oldest, newest = accepted
    wanted = f"{name} {oldest}" + (f" to {newest}" if newest != oldest else "")
    try:
        found = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if not f"{package}.".startswith(f"{error.name}."):  # it is there and lacks something itself
            raise
        install = f"pip install {package.replace('.', '-')}"
        raise ImportError(f"distca needs {wanted} here, and {name} is not installed: {install}") from None
    if not _minor(oldest) <= _minor(found) <= _minor(newest):
        raise ImportError(f"distca works with {wanted}, but {found} is installed")
    return found


def _minor(version):
    """(major, minor)"""
    return tuple(int(part) for part in version.split(".")[:2])
