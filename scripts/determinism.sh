#!/usr/bin/env bash
# Plans of every scheduler and layout, made by gcc -O3, gcc -O0 and clang++ -O3, against the pinned hashes.
#
#   scripts/determinism.sh [JOBS]
#
# Builds in build/determinism-*. After a change of the planner, write the pinned hashes anew:
#   build/core/bench/plan_hashes > distca/plan/testdata/plan_hashes.txt
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${1:-2}
pinned=distca/plan/testdata/plan_hashes.txt
clang=$(command -v clang++ || compgen -c clang++- | sort -V | tail -1)
die() { echo "determinism: $*" >&2; exit 1; }
[ -n "$clang" ] || die "no clang++: apt-get install clang"

failed=0
check() {  # NAME COMPILER FLAGS
  local build=build/determinism-$1
  mkdir -p "$build"
  { cmake --preset core -B "$build" --log-level=WARNING -DCMAKE_CXX_COMPILER="$2" -DCMAKE_CXX_FLAGS_RELEASE="$3" \
      -DDISTCA_BUILD_TESTS=OFF && cmake --build "$build" -j "$jobs" --target bench_plan_hashes; } \
    > "$build/log.txt" 2>&1 || { tail -30 "$build/log.txt" >&2; die "$1 does not build: $build/log.txt"; }
  "$build/bench/plan_hashes" > "$build/plan_hashes.txt"
  if diff "$pinned" "$build/plan_hashes.txt"; then
    echo "determinism: $1 ($("$2" --version | head -1), $3): $(wc -l < "$pinned") plans as pinned"
  else
    echo "determinism: $1 ($2 $3): the plans above (>) are not those pinned (<)" >&2
    failed=1
  fi
}
check gcc-O3 g++ "-O3 -DNDEBUG"
check gcc-O0 g++ "-O0"
check clang "$clang" "-O3 -DNDEBUG"
exit $failed
