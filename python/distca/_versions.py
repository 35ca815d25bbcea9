"""Which versions of PyTorch, Transformers, Megatron-Core and TorchTitan distca was tried with, and the one line about others.

An older one is refused, for a reason that was seen. A newer one is taken, with one warning. CMake and scripts read the
numbers from here; `make test-matrix` tries them (bench/results/matrix.md has its table).
"""

import importlib
import os
import re
import warnings

from distca import _library

TORCH = ("2.11", "2.15")  # the oldest minor version that is taken, and the newest that was tried
TRANSFORMERS = ("5.2", "5.24")
MEGATRON = ("0.16", "0.19")
TORCHTITAN = ("0.3", "0.3")

_LIBRARIES = {  # package -> its name, the versions, and what was seen with an older one
    "torch": ("PyTorch", TORCH, "distca does not compile against 2.10, whose c10::Stream has no native_handle"),
    "transformers": ("Transformers", TRANSFORMERS, "until 5.1, the hidden_states of two nano-batches are mixed up, and with 4.57 "
                                                   "other tokens are generated"),
    "megatron.core": ("Megatron-Core", MEGATRON, "0.15 cannot say whether it recomputes "
                                                 "(megatron.core.tensor_parallel.random.is_checkpointing)"),
    "torchtitan": ("TorchTitan", TORCHTITAN, "0.2 has no torchtitan.trainer, and its configuration is one of text (JobConfig)"),
}


def require_torch():
    """The folder of libraries, beside this file, for the PyTorch that is installed.

    PyTorch promises no binary interface between minor versions, so there is a folder for each that distca was built for.
    Raises ImportError in one line if there is none for this one. Warns of one that is newer than those that were tried.
    """
    built = sorted((name.removeprefix("torch-") for name in os.listdir(_library.FOLDER) if name.startswith("torch-")), key=_minor)
    if not built:
        raise ImportError("this distca was built without PyTorch: it can plan (distca.plan) and no more")
    found = require("torch", lambda found: "" if _minor(found) in map(_minor, built) else (
        f"this distca was built for PyTorch {', '.join(built)} and fits no other minor version, but {found} is installed: "
        "build distca again, pip install --no-build-isolation --force-reinstall DISTCA"), stacklevel=3)
    return "torch-{}.{}".format(*_minor(found))


def require(package, fault_of=lambda found: "", stacklevel=2):
    """The version of a package that is installed. Warns of one that is newer than those that were tried, at `stacklevel`.

    Raises ImportError in one line if it is missing, older or has a fault.
    """
    name, (oldest, newest), older = _LIBRARIES[package]
    pip_name = package.replace(".", "-")
    try:
        found = importlib.import_module(package).__version__
    except ModuleNotFoundError as error:
        if not f"{package}.".startswith(f"{error.name}."):  # it is there and lacks something itself
            raise
        raise ImportError(f"distca needs {name} {oldest} or newer here, and {name} is not installed: pip install {pip_name}"
                          ) from None
    if _minor(found) < _minor(oldest):
        raise ImportError(f"distca needs {name} {oldest} or newer, but {found} is installed: {older}")
    if fault := fault_of(found):
        raise ImportError(fault)
    if _minor(found) > _minor(newest):
        warnings.warn(f"distca was tried with {name} {' to '.join(dict.fromkeys((oldest, newest)))}, and {found} is installed; if "
                      f'something goes wrong: pip install "{pip_name}=={newest}.*"', stacklevel=stacklevel)
    return found


def _minor(version):
    """(major, minor)"""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
