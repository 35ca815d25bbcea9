#!/usr/bin/env bash
# Every source is as clang-format 14 leaves it (make format). Other versions format a little differently: they skip.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(clang-format --version | grep -oE '[0-9]+' | head -n 1)
if [ "$version" != 14 ]; then
  echo "check_format.sh: skipped: clang-format $version, the sources are formatted with 14"
  exit 0
fi
faults=$(git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format --dry-run --Werror 2>&1 |
  grep -oE "^[^ :]+:[0-9]+" | cut -d: -f1 | sort | uniq -c || true)
[ -z "$faults" ] || { printf 'places to format, per file (make format does it):\n%s\n' "$faults"; exit 1; }
