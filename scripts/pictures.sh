#!/usr/bin/env bash
# Makes docs/pictures again: two traced trainings over a slowed wire, two plans, and what is drawn of them.
# Called by `make pictures`, as root, with iproute2 and two cores; about a minute. `make demo` prepares the data.
set -euo pipefail
cd "$(dirname "$0")/.."
distca=build/release/distca
python=.venv/bin/python
draw="$python scripts/draw_pictures.py"
out=docs/pictures
work=runs/pictures
layer=2            # of layers 0 to 3
rate=${RATE:-40}   # MB/s of each direction of the wire

[ "$(id -u)" -eq 0 ] || { echo "pictures.sh: run as root, for network namespaces" >&2; exit 1; }
export RES_OPTIONS="timeout:1 attempts:1"  # the namespaces have no resolver
$python -c 'import matplotlib' 2>/dev/null || $python -m pip install -q matplotlib
[ -f data/stdlib.idx ] || { echo "pictures.sh: no data/stdlib: run make demo, which prepares it" >&2; exit 1; }

# One training in two network namespaces, which are two machines to TCP: steps 3 to 7 are traced.
train() {
  PYTHONPATH=bench $python - "$rate" $distca train --config configs/demo.toml batch.nano_batches=2 train.steps=7 \
    train.trace_first_step=3 train.trace_steps=5 plan.layout=sequential train.output_dir=$work/"$1" train.overwrite=true \
    train.overlap="$1" --trace $work/"$1".json <<'PYTHON'
import sys, wire
if reason := wire.why_not():
    sys.exit(f"pictures.sh: {reason}")
with wire.namespaces():
    wire.limit(int(sys.argv[1]))
    wire.run_ranks(["sh", "-c", 'exec taskset -c $RANK "$@"', "sh", *sys.argv[2:]], 29400)
PYTHON
}
mkdir -p $work $out
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
run="Two workers of one core each (${cpu:-unknown processor}) in two network namespaces, joined by a wire that is limited to \
$rate MB/s in each direction; configs/demo.toml with two nano-batches and plan.layout=sequential (8,192 tokens each; hidden \
size 256, heads 4:2 of 64, fp32). Of 5 traced steps, the one is shown in which this layer, forward and backward, took the \
median time. Nobody knows when a message arrived before the wait for it, so it is drawn from its issue to the end of the wait. \
One layer is not a measurement; bench/wire.py measures."
for overlap in none ping-pong; do
  train $overlap
  $draw keep $work/$overlap.json --layer $layer --caption "$run" > $out/$overlap.json
done
for pass in forward backward; do
  $draw layer $out/none.json $out/ping-pong.json --pass $pass > $out/layer_$pass.svg
done

workload=distca/plan/testdata/workloads/pretrain_8x128k_0.json
heads="model.num_attention_heads=4 model.num_key_value_heads=1 model.head_dim=128 model.dtype=bfloat16" # Llama 3 8B, TP 8
$distca plan --workload $workload $heads plan.scheduler=local --json > $work/before.json
$distca plan --workload $workload $heads --json > $work/after.json
$draw load $work/before.json $work/after.json --caption "distca plan for $workload: one nano-batch of 8 x 131,072 tokens. \
Before: scheduler local, plain packing. After: scheduler balanced, the default, with its own layout." \
  > $out/load.svg

$draw pipeline $out/pipeline.json > $out/pipeline.svg
echo "drawn: $out/layer_forward.svg, $out/layer_backward.svg, $out/load.svg, $out/pipeline.svg"
