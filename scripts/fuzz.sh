#!/usr/bin/env bash
# libFuzzer over task lists of attention (tests/fuzz), with clang, ASan and UBSan. Starts from the inputs in
# tests/fuzz/corpus; new ones are kept in build/fuzz/corpus.
#
#   scripts/fuzz.sh [JOBS [SECONDS]]
#
# An input that fails is written to build/fuzz/; put it into tests/fuzz/corpus/task_list, where CI runs it from then on.
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

cmake --preset fuzz --log-level=WARNING -DCMAKE_CXX_COMPILER="$clang"
cmake --build build/fuzz -j "$jobs" --target task_list_fuzz
mkdir -p build/fuzz/corpus
build/fuzz/tests/task_list_fuzz -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=600 \
  -artifact_prefix=build/fuzz/ -print_final_stats=1 build/fuzz/corpus tests/fuzz/corpus/task_list
