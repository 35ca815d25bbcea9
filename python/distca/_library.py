"""Loads the libraries that lie beside this file."""

import ctypes
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load(name: str, functions=(), kind=ctypes.CDLL) -> ctypes.CDLL:
    """The shared library with this file name; `kind` of ctypes calls its functions.

    functions: {name: (what it returns, what it takes, ...)}.
    Raises ImportError in one line that says why it cannot be loaded.
    """
    try:
        library = kind(os.path.join(FOLDER, name))
    except OSError as error:
        reason = str(error).replace("\n", " ")
        raise ImportError(f"distca cannot load its library: {reason}; install distca again") from None
    for function, (result, *arguments) in dict(functions).items():
        of_library = getattr(library, function)
        of_library.restype, of_library.argtypes = result, arguments
    return library
