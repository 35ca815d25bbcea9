#!/usr/bin/env bash
# Configures a preset and builds it: build.sh PRESET [ARGUMENT...], with what `cmake --build` takes. It says how far it
# is: on a terminal in ninja's one line, elsewhere in a line for every twentieth part.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset "$1" --log-level=WARNING >/dev/null
if [ -t 1 ]; then
  exec cmake --build --preset "$@"
fi
said=
cmake --build --preset "$@" | while IFS= read -r line; do
  if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
    part=$((20 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    [ "$part" != "$said" ] || continue
    said=$part
  fi
  printf '%s\n' "$line"
done
