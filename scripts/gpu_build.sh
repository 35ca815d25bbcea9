#!/usr/bin/env bash
# Builds what scripts/gpu_check.sh runs, for a machine whose time is short, and packs it into offline/build.tgz:
#
#   scripts/gpu_build.sh PYTHON [FILE...]      # the Python that has a PyTorch with CUDA, of the version that is there;
#                                              # files that travel, too, as for scripts/offline_bundle.sh
#   tar xzf offline/build.tgz && scripts/gpu_check.sh first A --as-built       # on the machine with the device
#
# That machine needs a libc and a libstdc++ that are no older than those here.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { echo "gpu_build: expected the Python that has PyTorch with CUDA" >&2; exit 2; }
build=build/gpu_check
mapfile -t programs < <(cd bench && python3 -c 'import gpu_stages; print(*gpu_stages.programs(), sep="\n")')
mapfile -t targets < <(cd bench && python3 -c 'import gpu_check, gpu_stages; print(*map(gpu_check.target_of, gpu_stages.programs()), sep="\n")')

[ ${#targets[@]} -gt 1 ] || { echo "gpu_build: bench/gpu_stages.py names no programs" >&2; exit 1; }

scripts/offline_bundle.sh "${@:2}"
cmake -G Ninja -B $build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/offline" -DDISTCA_PYTHON="$1" -DDISTCA_BUILD_PYTHON=ON
cmake --build $build -j "${JOBS:-2}" --target distca_python "${targets[@]}"
rm -rf $build/package
cmake --install $build --component python --prefix $build/package
cp python/distca/*.py $build/package/distca/

packed=build/gpu_check.packed
rm -rf $packed
trap 'rm -rf $packed' EXIT
mkdir -p $packed/$build
for program in "${programs[@]}" distca-torch; do
  install -D --strip $build/"$program" $packed/$build/"$program"
done
cp -r $build/package $packed/$build/
strip $packed/$build/package/distca/{,torch-*/}*.so
[ ! -d offline/kernels ] || { mkdir -p $packed/offline && cp -r offline/kernels $packed/offline/; }
tar czf offline/build.tgz -C $packed .
echo "gpu_build: offline/build.tgz holds $(du -sh offline/build.tgz | cut -f1)"
