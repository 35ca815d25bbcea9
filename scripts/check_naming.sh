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
mapfile -t sources < <(listed 'distca/*.cc' 'cli/*.cc' 'python/*.cc' 'bench/*.cc' |
  xargs grep -LE '^#include <(torch|ATen|c10|caffe2)/')
[ ${#sources[@]} -gt 0 ] || die "found no sources"

# One after another these files take minutes, most of them for headers that they share: all headers are looked at
# together, and eight sources at a time. Each such unit ends with a name that must be found: else clang-tidy has not looked.
units=build/core/naming
rm -rf $units && mkdir -p $units
listed 'distca/*.h' 'cli/*.h' 'python/*.h' >$units/headers.txt
printf '%s\n' "${sources[@]}" | split -l 8 --additional-suffix=.txt - $units/sources_
for list in $units/*.txt; do
  { sed 's|.*|#include "&"|' "$list"; echo 'int MustBeFound = 0;'; } >"${list%.txt}.cc"
done

# Its older parser refuses some of what the compiler accepts, and goes on: only a crash or a missing header counts.
look() {
  xargs -P 2 -n 1 bash -c 'clang-tidy --quiet --header-filter="(distca|cli|python|bench)/.*" "$1" -- -std=c++20 \
      -ferror-limit=0 -I. -Ibuild/core/generated "-DDISTCA_WORKLOADS=\"\"" "-DDISTCA_TORCH_PROGRAM=\"\""
    [ $? -le 1 ] || exit 255' bash 2>/dev/null | sed "s#^$PWD/##; s#^\./##"
}
output=$(printf '%s\n' $units/*.cc | look) || die "clang-tidy failed"
for unit in $units/*.cc; do
  grep -q "$unit.*MustBeFound" <<<"$output" || die "clang-tidy looks at no names: it missed MustBeFound in $unit"
done
# Two sources of a unit that name a helper alike are an error in the second one, which may hide names: it is looked at
# alone.
alone=$(grep -F ': error: ' <<<"$output" | cut -d: -f1 | grep -Fx -f <(printf '%s\n' "${sources[@]}") | sort -u) || true
[ -z "$alone" ] || output+=$'\n'$(look <<<"$alone") || die "clang-tidy failed"
if missing=$(grep -m 1 'file not found' <<<"$output"); then die "$missing"; fi
faults=$(grep -F '[readability-identifier-naming' <<<"$output" | grep -v MustBeFound | sort -u) || true
[ -z "$faults" ] || { echo "$faults"; exit 1; }
echo "check_naming.sh: all headers and ${#sources[@]} sources"
