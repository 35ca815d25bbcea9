#!/usr/bin/env bash
# Runs every structure check and reports all failures, not only the first.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
for check in check_layers.py check_tests.py check_docs.py check_sizes.py check_duplicates.py check_comments.py check_host_reads.py check_format.sh check_naming.sh; do
  start=$SECONDS
  if "scripts/$check"; then
    printf '%-20s ok (%d s)\n' "$check" $((SECONDS - start))
  else
    printf '%-20s FAILED\n' "$check"
    failed+=("$check")
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "check: failed: ${failed[*]}" >&2; exit 1; }
