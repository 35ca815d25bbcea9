#!/usr/bin/env bash
# Compiles, without a GPU, what reaches CUDA against the oldest PyTorch that is supported, in its build with CUDA:
# syntax and types only, nothing is linked or run. Downloads that wheel by name with pip the first time (headers are
# kept in build/cuda_headers, 0.1 GB); then about a quarter of a minute a source on a free core.
#
#   scripts/check_cuda_headers.sh [SOURCE...]     by default all that name CUDA, but tests
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.11.0
folder=build/cuda_headers

die() { echo "check_cuda_headers: $*" >&2; exit 1; }
generated=
for preset in release core; do
  [ ! -d "build/$preset/generated" ] || generated=build/$preset/generated
done
[ -n "$generated" ] || die "no build/release/generated: run cmake --preset release first"

if [ ! -e $folder/torch-$torch_version ]; then
  python=python3
  [ ! -x .venv/bin/python ] || python=.venv/bin/python
  rm -rf $folder
  mkdir -p $folder/wheels
  echo "check_cuda_headers: downloading PyTorch $torch_version with pip"
  $python -m pip download -q --no-deps --progress-bar off -d $folder/wheels torch==$torch_version 2>$folder/pip.log ||
    { cat $folder/pip.log >&2; die "pip could not download it"; }
  $python - $folder <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
for wheel in (folder / "wheels").glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/include/" in name])
PYTHON
  rm -r $folder/wheels
  touch $folder/torch-$torch_version
fi

sources=("$@")
[ $# -gt 0 ] || mapfile -t sources < <(grep -lE 'kCUDA|is_cuda|cuda_device' -r distca bench cli --include='*.cc' |
  grep -v -E '_test\.cc$' | xargs grep -lE '#include <(ATen|c10|torch)/' | sort)
failed=()
for source in "${sources[@]}"; do
  start=$SECONDS
  # As cmake/TorchWheel.cmake compiles them.
  if nice g++ -std=c++20 -fsyntax-only -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers \
    -DDISTCA_WITH_TORCH -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -D_GLIBCXX_USE_CXX11_ABI=1 -I. "-I$generated" \
    -idirafter $folder/torch/include -idirafter $folder/torch/include/torch/csrc/api/include "$source"; then
    printf 'PASS  %-40s %4d s\n' "$source" $((SECONDS - start))
  else
    printf 'FAIL  %-40s %4d s\n' "$source" $((SECONDS - start))
    failed+=("$source")
  fi
done
echo "check_cuda_headers: $((${#sources[@]} - ${#failed[@]})) of ${#sources[@]} sources compile against PyTorch $torch_version with CUDA"
[ ${#failed[@]} -eq 0 ] || exit 1
