#!/usr/bin/env bash
# libFuzzer over the fuzz targets (tests/fuzz/targets.h), with clang, ASan and UBSan: all of them in turn, or one.
# A target starts from the inputs in tests/fuzz/corpus/TARGET; new ones are kept in build/fuzz/corpus/TARGET.
#
#   scripts/fuzz.sh [JOBS [SECONDS [TARGET]]]     SECONDS: of each target
#
# An input that fails is written to build/fuzz/; put it into tests/fuzz/corpus/TARGET, where CI runs it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-2}
seconds=${2:-60}
die() { echo "fuzz: $*" >&2; exit 1; }
clang=$(command -v clang++ || compgen -c clang++- | sort -V | tail -1)
[ -n "$clang" ] || die "no clang++: apt-get install clang"
version=$("$clang" -dumpversion | cut -d. -f1)
[ -e "$("$clang" -print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a" ] ||
  die "clang++ has no libFuzzer: apt-get install libclang-rt-$version-dev"
known=$(ls tests/fuzz/corpus)
targets=${3:-$known}
for target in $targets; do
  [ -d "tests/fuzz/corpus/$target" ] || die "no target $target; there are" $known
done

cmake --preset fuzz --log-level=WARNING -DCMAKE_CXX_COMPILER="$clang"
cmake --build build/fuzz -j "$jobs" --target $(printf '%s_fuzz ' $targets)
for target in $targets; do
  # A longer input finds no more.
  [ "$target" = task_list ] && most_bytes=600 || most_bytes=4096
  mkdir -p "build/fuzz/corpus/$target"
  echo "fuzz: $target, $seconds s"
  TMPDIR=/dev/shm build/fuzz/tests/"$target"_fuzz -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 \
    -malloc_limit_mb=512 -max_len=$most_bytes -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 \
    "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target"
done
