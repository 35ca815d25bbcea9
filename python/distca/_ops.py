"""The operators of the library for the PyTorch that is installed."""

from distca._versions import require_torch

LIBRARY = f"{require_torch()}/libdistca_torch.so"

import torch  # noqa: E402: of a version that the library fits

from distca import _library  # noqa: E402

_library.load(LIBRARY)  # which registers them
ops = torch.ops.distca
