"""The operators of the library that lies beside this file."""

from distca._versions import require_torch

require_torch()

import torch  # noqa: E402: of a version that the library fits

from distca import _library  # noqa: E402

_library.load("libdistca_torch.so")  # which registers them
ops = torch.ops.distca
