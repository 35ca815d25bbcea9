#!/usr/bin/env bash
# Train a small Llama on the source text of the installed Python's standard library. Called by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
distca=build/release/distca
python=.venv/bin/python
[ -x "$python" ] || python=python3

stdlib=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')
echo "== 1. data: the source text under $stdlib, each file a document"

"$distca" data prepare --text "$stdlib" --glob "*.py" --exclude site-packages dist-packages --tokenizer byte --out data/stdlib --overwrite

echo
echo "== 2. training: configs/demo.toml on 2 local workers"
chosen=$("$python" scripts/demo_steps.py "$distca" "$@")
# shellcheck disable=SC2086  # words
"$distca" train --config configs/demo.toml --workers 2 train.overwrite=true $chosen "$@"

run=$(printf '%s\n' train.output_dir=runs/demo "$@" | sed -n 's/^train\.output_dir=//p' | tail -n 1)
if [ -f "$run/model.safetensors" ]; then  # there is none after --dry-run
  echo
  echo "== 3. what the model says after \"def \""
  "$distca" generate "$run" "def " --max-new-tokens 300 --temperature 0.8
fi

cat <<'NEXT'

Next
  build/release/distca generate runs/demo "class " --temperature 0.8 --seed 2
                                                                           another text of it
  build/release/distca plan --config configs/demo.toml --workers 4         a plan: load and bytes per server
  build/release/distca train --config configs/demo.toml --workers 2 \
      plan.scheduler=local train.output_dir=runs/local                     the same model without balancing
  build/release/distca train --config configs/stdlib_30min.toml --workers 2
                                                                           well below the bigram entropy
  build/release/distca train --print-config                                every key, with its reason
NEXT
