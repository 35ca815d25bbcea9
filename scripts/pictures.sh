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

die() { echo "pictures.sh: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || die "needs root, to make network namespaces"
command -v tc >/dev/null || die "needs iproute2"
$python -c 'import matplotlib' 2>/dev/null || $python -m pip install -q matplotlib
[ -f data/stdlib.idx ] || die "no data/stdlib: run make demo, which prepares it"

# Two network namespaces are two machines to TCP. A token bucket limits what each sends: a segment of 64 KiB, as TCP hands
# it down, fits into it, so the kernel need not cut it.
pair=distca-pictures-$$
remove() {  # with whatever still runs there
  for end in 0 1; do
    ip netns pids $pair-$end 2>/dev/null | xargs -r kill || true
    ip netns del $pair-$end 2>/dev/null || true
  done
}
trap remove EXIT
for end in 0 1; do ip netns add $pair-$end; done
ip -n $pair-0 link add wire type veth peer name wire netns $pair-1
bytes=$((rate * 1000000))
for end in 0 1; do
  ip -n $pair-$end addr add 10.97.0.$((end + 1))/30 dev wire
  ip -n $pair-$end link set lo up
  ip -n $pair-$end link set wire mtu 65535 up
  ip netns exec $pair-$end sh -c 'echo reno > /proc/sys/net/ipv4/tcp_congestion_control
    echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle'
  ip netns exec $pair-$end tc qdisc replace dev wire root tbf rate ${bytes}bps \
    burst $((bytes / 1000 > 73728 ? bytes / 1000 : 73728)) limit 4194304
done

# One training in both namespaces: steps 3 to 7 are traced.
rank() {
  ip netns exec $pair-"$1" env RANK="$1" LOCAL_RANK="$1" WORLD_SIZE=2 MASTER_ADDR=10.97.0.1 MASTER_PORT=29400 \
    GLOO_SOCKET_IFNAME=wire RES_OPTIONS='timeout:1 attempts:1' taskset -c "$1" \
    $distca train --config configs/demo.toml batch.nano_batches=2 train.steps=7 train.trace_first_step=3 \
    train.trace_steps=5 plan.layout=sequential train.output_dir=$work/"$2" train.overwrite=true train.overlap="$2" \
    --trace $work/"$2".json
}
mkdir -p $work $out
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
run="Two workers of one core each (${cpu:-unknown processor}) in two network namespaces, joined by a wire that is limited to \
$rate MB/s in each direction; configs/demo.toml with two nano-batches and plan.layout=sequential (8,192 tokens each; hidden \
size 256, heads 4:2 of 64, fp32). Of 5 traced steps, the one is shown in which this layer, forward and backward, took the \
median time. Nobody knows when a message arrived before the wait for it, so it is drawn from its issue to the end of the wait. \
One layer is not a measurement; bench/wire.py measures."
for overlap in none ping-pong; do
  rank 1 $overlap >/dev/null & other=$!
  rank 0 $overlap
  wait $other
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
