#!/usr/bin/env bash
# Compiles FlashAttention 4's kernels for Hopper with what pip brings, without a GPU, and loads and calls each of them
# against a stand-in of CUDA's run-time library (check_kernels.py). The packages (1 GB) come into build/kernels, beside the
# PyTorch of .venv. Each of the four sets of kernels takes about a minute, behind the download.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
python=build/kernels/bin/python3
if ! "$python" -c 'import flash_attn.cute' 2>/dev/null; then
  python3 -m venv build/kernels
  site=$("$python" -c 'import site; print(site.getsitepackages()[0])')
  .venv/bin/python3 -c 'import site; print(site.getsitepackages()[0])' >"$site/torch.pth"
  "$python" -m pip --quiet --disable-pip-version-check install 'flash-attn-4>=4.0.0b36' 'nvidia-cutlass-dsl[cu13]' triton
fi
export PATH="$PWD/build/kernels/bin:$PATH"
for head_dim in 64 128; do
  for group in 1 4; do
    folder=build/kernels/fa4-sm_90-d$head_dim-bfloat16-g$group
    DISTCA_PYTHON=$python build/release/distca kernels build --head-dim $head_dim --qheads-per-kvhead $group --out "$folder" --overwrite
    "$python" scripts/check_kernels.py "$folder"
  done
done
