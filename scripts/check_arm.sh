#!/usr/bin/env bash
# The kernels for Arm: cross-compiled for aarch64, their unit tests run under qemu. There the CPU kernel has its portable
# instruction set only, which the compiler turns into NEON.
#
#   scripts/check_arm.sh [JOBS] [GTEST FILTER]
#
# Needs: apt-get install g++-aarch64-linux-gnu qemu-user. Builds in build/arm with the libraries of offline/, which it
# makes where there is none (scripts/offline_bundle.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-2}
filter=${2:--*CpuBitsTest*:*CpuAttentionTest*:*long*}  # without those that take many minutes under emulation
target=aarch64-linux-gnu
die() { echo "check_arm: $*" >&2; exit 1; }
for program in $target-g++ qemu-aarch64; do
  command -v $program >/dev/null || die "no $program: apt-get install g++-$target qemu-user"
done
[ -d offline ] || scripts/offline_bundle.sh >/dev/null

build=build/arm
mkdir -p $build
{ cmake --preset core -B $build --log-level=WARNING -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=$target-gcc -DCMAKE_CXX_COMPILER=$target-g++ -DCMAKE_PREFIX_PATH="$PWD/offline" \
    -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64;-L;/usr/$target" -DDISTCA_BUILD_BENCH=OFF &&
  cmake --build $build -j "$jobs" --target kernels_test cpu_attention_test; } > $build/log.txt 2>&1 ||
  { tail -30 $build/log.txt >&2; die "does not build: $build/log.txt"; }
for test in kernels_test cpu_attention_test; do
  qemu-aarch64 -L /usr/$target "$build/rooms/kernels/$test" --gtest_brief=1 --gtest_filter="$filter"
done
