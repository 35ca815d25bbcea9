#!/usr/bin/env bash
# Every source is as clang-format 14 leaves it (make format). Other versions format a little differently: they skip.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "check_format.sh: $*" >&2; exit 1; }
command -v clang-format >/dev/null || die "no clang-format: run scripts/setup.sh"
version=$(clang-format --version | grep -oE '[0-9]+' | head -n 1) || die "clang-format --version says no version"
if [ "$version" != 14 ]; then
  echo "check_format.sh: skipped: clang-format $version, the sources are formatted with 14"
  exit 0
fi
output=$(git ls-files -co --exclude-standard '*.h' '*.cc' |
  while read -r path; do if [ -f "$path" ]; then echo "$path"; fi; done |
  xargs clang-format --dry-run --Werror 2>&1) && exit 0
faults=$(grep -oE '^[^ :]+:[0-9]+' <<<"$output" | cut -d: -f1 | sort | uniq -c) || die "clang-format failed: ${output%%$'\n'*}"
printf 'places to format, per file (make format does it):\n%s\n' "$faults"
exit 1
