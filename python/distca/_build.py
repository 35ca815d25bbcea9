"""What this build is; written by CMake."""

VERSION = "0.1.0"
TORCH = "2.13.0+cpu"  # of the PyTorch that it was built against; empty: without
