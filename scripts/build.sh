#!/usr/bin/env bash
# Configures a preset and builds it: build.sh PRESET [ARGUMENT...], with what `cmake --build` takes. It says how far it
# is: on a terminal in ninja's one line, elsewhere in a line for every twentieth part.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset "$1" --log-level=WARNING >/dev/null
if [ -t 1 ]; then
  exec cmake --build --preset "$@"
fi
cmake --build --preset "$@" | awk -F '[][/]' '
  /^\[[0-9]+\/[0-9]+\] / {part = int(20 * $2 / $3); if (part == said && $2 > 1) next; said = part}
  {print; fflush()}'
