#!/usr/bin/env bash
# Names follow .clang-tidy: in all headers (none includes PyTorch), in every source of the rooms without PyTorch, and
# in those sources of the other rooms that include none of its headers. Not looked at, because PyTorch's headers would
# take clang-tidy many minutes: the remaining sources of comm, runtime, model and train, whose helpers and locals only
# review sees. Nor tests and what they share: GoogleTest's macros make names of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "check_naming.sh: $*" >&2; exit 1; }
command -v clang-tidy >/dev/null || die "no clang-tidy: run scripts/setup.sh"
cmake --preset core --log-level=WARNING >/dev/null || die "cmake --preset core failed"  # makes build_info.h

listed() {
  git ls-files -co --exclude-standard "$@" | grep -vE '_test(_child)?\.cc$|_testing\.h$|/test_' |
    while read -r path; do if [ -f "$path" ]; then echo "$path"; fi; done
}
mapfile -t sources < <(listed 'distca/*.cc' 'cli/*.cc' 'bench/*.cc' |
  xargs grep -LE '^#include <(torch|ATen|c10|caffe2)/')
[ ${#sources[@]} -gt 0 ] || die "found no sources"

# All headers at once, and a name that must be found: else clang-tidy does not look.
headers=build/core/naming.cc
listed 'distca/*.h' 'cli/*.h' | sed 's|.*|#include "&"|' >"$headers"
echo 'int MustBeFound = 0;' >>"$headers"

# Its older parser refuses some of what the compiler accepts, and goes on: only a crash or a missing header counts.
output=$(printf '%s\n' "$headers" "${sources[@]}" | xargs -P 2 -n 4 bash -c '
  clang-tidy --quiet "$@" -- -std=c++20 -I. -Ibuild/core/generated "-DDISTCA_WORKLOADS=\"\""
  [ $? -le 1 ] || exit 255' bash 2>/dev/null) || die "clang-tidy failed"
if missing=$(grep -m 1 'file not found' <<<"$output"); then die "$missing"; fi
grep -q MustBeFound <<<"$output" || die "clang-tidy looks at no names: it missed MustBeFound in $headers"
faults=$(grep -F '[readability-identifier-naming' <<<"$output" | grep -v MustBeFound | sed "s|^$PWD/||" | sort -u) || true
[ -z "$faults" ] || { echo "$faults"; exit 1; }
echo "check_naming.sh: all headers and ${#sources[@]} sources"
