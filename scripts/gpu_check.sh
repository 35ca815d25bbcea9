#!/usr/bin/env bash
# Builds and checks DistCA on a machine with a GPU that has CMake, Ninja, a compiler and PyTorch with CUDA, but neither
# apt nor a network. A line a check, PASS, FAIL or SKIP, and all of them in a table at the end (docs/gpu.md).
#
#   scripts/offline_bundle.sh                  # first, where apt is: offline/ travels with the sources
#   scripts/gpu_check.sh first                 # ten minutes from nothing: the build, and of all stages what says most
#   scripts/gpu_check.sh A B D E               # at most 8 minutes each: A build and tests, B speed, D training, E NCCL
#   scripts/gpu_check.sh A B D E --device cpu  # rehearses it anywhere, in small, with what build/release has
#
# Tables and raw output go to --out, else to $OUT, if set, else to runs/gpu_check.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
[ ! -x .venv/bin/python3 ] || python=.venv/bin/python3
exec "$python" bench/gpu_stages.py "$@"
