#!/usr/bin/env bash
# Names follow .clang-tidy, in the rooms without PyTorch (its headers would take clang-tidy far longer).
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset core --log-level=WARNING >/dev/null
sources=$(git ls-files -co --exclude-standard 'distca/*.cc' 'cli/*.cc' | grep -v '_test\.cc$' |
  while read -r path; do
    if grep -qF "/$path\"" build/core/compile_commands.json; then echo "$path"; fi
  done)
# Only names count: where the compiler accepts what clang-tidy's older parser does not, the rest is still checked.
faults=$(xargs -P 2 -n 4 clang-tidy -p build/core --quiet <<<"$sources" 2>/dev/null |
  grep -F '[readability-identifier-naming]' | sed "s|^$PWD/||" | sort -u || true)
[ -z "$faults" ] || { echo "$faults"; exit 1; }
echo "check_naming.sh: $(wc -l <<<"$sources") sources"
