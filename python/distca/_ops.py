"""The operators of the library that lies beside this file, or in the folder that DISTCA_LIBRARY_DIR names."""

import os

from distca._versions import require_torch

require_torch()

import torch  # noqa: E402: of a version that the library fits

FILE = "libdistca_torch.so"


def _load():
    folders = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("DISTCA_LIBRARY_DIR", "")]
    paths = [os.path.join(folder, FILE) for folder in folders if folder]
    for path in paths:
        if os.path.exists(path):
            torch.ops.load_library(path)
            return torch.ops.distca
    raise ImportError(f"distca finds its library at none of {', '.join(paths)}: install distca again")


ops = _load()
