#!/usr/bin/env bash
# Builds and checks DistCA on a machine with a GPU that has CMake, Ninja, a compiler and PyTorch with CUDA, but neither
# apt nor a network. One line a check, PASS or FAIL, and a table at the end; exit code 1 if any failed.
#
#   scripts/offline_bundle.sh                    # first, where apt is: offline/ travels with the sources
#   scripts/gpu_check.sh A                       # at most 8 minutes on 16 cores: build, versions, all CUDA tests, a
#                                                # memory checker on one of them, a short training and measurement
#   scripts/gpu_check.sh A --device cpu          # rehearses it: the same checks on a CPU, or what is called a stand-in
#
# The table and all output go to $OUT, if set, else to build/gpu_check.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() { echo "gpu_check: $*; usage: scripts/gpu_check.sh A [--device cuda|cpu]" >&2; exit 2; }
stage=${1:-}
device=cuda
case $#,${2:-} in
  1,) ;;
  3,--device) device=$3 ;;
  *) usage "expected a stage and nothing or --device" ;;
esac
[ "$stage" = A ] || usage "there is no stage $stage yet, only A"
[ "$device" = cuda ] || [ "$device" = cpu ] || usage "--device $device: cuda or cpu"

out=${OUT:-build/gpu_check}
work=build/gpu_check_work
mkdir -p "$out" $work
log=$out/gpu_check_A.log
table=$out/gpu_check_A.txt
: >"$log"
rows=()
failed=0
begun=$SECONDS

# check NAME LIMIT COMMAND...: runs it for at most LIMIT seconds; its last line of output is the detail of the row.
check() {
  local name=$1 limit=$2 start=$SECONDS status verdict=PASS detail
  shift 2
  export limit
  { echo; echo "== $name: $*"; } >>"$log"
  # No pipe between: what hangs would hold it open beyond the limit.
  "$@" >$work/step.log 2>&1 </dev/null
  status=$?
  cat $work/step.log >>"$log"
  detail=$(grep -v '^[[:space:]]*$' $work/step.log | tail -n 1 | cut -c 1-150)
  if [ $status -ne 0 ]; then
    verdict=FAIL
    failed=$((failed + 1))
    [ $status -ne 124 ] || detail="not over after $limit s; $detail"
    tail -n 15 $work/step.log | sed 's/^/    /'
  fi
  row "$verdict" "$name" $((SECONDS - start)) "$detail"
  return $status
}

row() {
  local line
  line=$(printf '%-4s  %-34s %5s s  %s' "$@")
  echo "$line"
  rows+=("$line")
}

# within COMMAND...: at most $limit seconds; its whole process group ends then.
within() { timeout -k 10 "$limit" "$@"; }

# tests PROGRAM FILTER [VARIABLE=VALUE|COMMAND...]: passes if at least one case ran and none missed its device. The rest
# of the arguments is put before the program.
tests() {
  local program=$1 filter=$2 passed
  shift 2
  [ -x "$program" ] || { echo "$program was not built"; return 1; }
  within env "$@" "$program" --gtest_color=no --gtest_filter="$filter" >$work/tests.log 2>&1
  local status=$?
  cat $work/tests.log
  [ $status -eq 0 ] || { echo "exit code $status"; return $status; }
  ! grep -q 'no CUDA device' $work/tests.log || { echo "skipped: no CUDA device"; return 1; }
  passed=$(grep -c '^\[       OK' $work/tests.log)
  [ "$passed" -gt 0 ] || { echo "no case matches $filter"; return 1; }
  echo "$passed cases"
}

# --- the checks ----------------------------------------------------------------------------------

bundle() {
  [ -d offline ] || scripts/offline_bundle.sh || return 1
  if [ $device = cuda ]; then
    echo "offline/ holds $(du -sh offline | cut -f1)"
    return
  fi
  within cmake -G Ninja -B build/offline -DCMAKE_PREFIX_PATH="$PWD/offline" -DDISTCA_WITH_TORCH=OFF \
    -DDISTCA_BUILD_BENCH=OFF && within cmake --build build/offline -j "$jobs" --target base_test &&
    within build/offline/rooms/base/base_test --gtest_brief=1 &&
    echo "base_test built and passed with offline/ alone ($(du -sh offline | cut -f1)); the rest below is the release preset's"
}

configure() {
  if [ $device = cuda ]; then
    within cmake -G Ninja -B $build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/offline"
  else
    within cmake --preset release
  fi >$work/configure.log 2>&1
  local status=$?
  cat $work/configure.log
  grep -oE 'PyTorch [^ ]+ \(CUDA [^)]*\)' $work/configure.log | tail -n 1
  return $status
}

compile() { within cmake --build $build -j "$jobs" --target "${targets[@]}" && echo "${#targets[@]} targets, $jobs jobs"; }

probe() {
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem --format=csv,noheader 2>&1
  nvcc --version 2>/dev/null | tail -n 1
  within "$python" - "$device" <<'PYTHON'
import sys, torch
cuda = torch.cuda.is_available()
facts = [f"PyTorch {torch.__version__}", f"CUDA {torch.version.cuda}"]
if torch.version.cuda:
    facts += ["cuDNN %s" % torch.backends.cudnn.version()]
facts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(", ".join(facts))
sys.exit(sys.argv[1] == "cuda" and not cuda)
PYTHON
}

# train NAME KEY=VALUE...: 4 steps; every loss must be there and finite, the last below the first.
train() {
  local name=$1
  shift
  if [ ! -e $work/docs.idx ]; then
    within $distca data prepare --text docs --glob '*.md' --tokenizer byte --out $work/docs || return 1
  fi
  within $distca train data.prefix=$work/docs train.output_dir=$work/$name train.overwrite=true train.steps=4 \
    batch.nano_batch_tokens=2048 batch.max_document_tokens=2048 model.hidden_size=128 model.num_hidden_layers=2 "$@" || return 1
  "$python" - $work/$name/metrics.jsonl <<'PYTHON'
import json, math, sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
print("losses", *(f"{loss:.4f}" for loss in losses))
sys.exit(len(losses) != 4 or not all(map(math.isfinite, losses)) or losses[-1] >= losses[0])
PYTHON
}

# Bits: two runs of one command.
repeats() {
  train repeat_a "$@" && train repeat_b "$@" && cmp $work/repeat_{a,b}/model.safetensors && echo "the same bits twice"
}

memcheck() {
  if [ $device = cuda ]; then
    tests $build/rooms/runtime/aten_attention_test 'formats/CudaAttentionTest.keys_in_one_memory_are_not_copied/*' \
      compute-sanitizer --tool memcheck --error-exitcode 9 --leak-check no
  else
    tests $build/rooms/runtime/aten_attention_test 'VarlenAttention*' \
      MALLOC_CHECK_=3 MALLOC_PERTURB_=165 LD_PRELOAD=libc_malloc_debug.so.0
  fi
}

measurement() {
  if [ $device = cuda ]; then
    within "$python" bench/report.py --out "$out/cuda_attention.jsonl" $build/bench/cuda_attention \
      --rounds 3 --query-tokens 8192 --key-tokens 1048576
    return
  fi
  within "$python" bench/report.py $build/bench/cuda_attention
  [ $? -eq 2 ]  # and one line that says why
}

# --- in order ------------------------------------------------------------------------------------

jobs=${JOBS:-$(nproc)}
python=python3
[ ! -x .venv/bin/python3 ] || python=.venv/bin/python3
build=build/gpu_check_build
slow=1  # the rehearsal may run on two cores
[ $device = cuda ] || { build=build/release; slow=40; }
distca=$build/distca
targets=(distca aten_attention_test parity_test bench_cuda_attention)
name_of_memcheck="memory checker"
[ $device = cuda ] || name_of_memcheck="memory checker (stand-in: malloc's)"
stand_in=""
[ $device = cuda ] || stand_in=" (stand-in)"

check "offline bundle" $((30 * slow)) bundle
check "versions" 60 probe
if check "configure" $((60 * slow)) configure && check "build" $((300 * slow)) compile; then
  if [ $device = cuda ]; then
    check "attention" 60 tests $build/rooms/runtime/aten_attention_test 'formats/CudaAttentionTest*'
    check "parity with the CPU" 60 tests $build/tests/parity_test 'parity.ranks_as_threads_on_one_gpu_give_the_cpus_result'
    on_device=(train.device=cuda comm.backend=threads)
    check "training, one rank" 60 train one "${on_device[@]}"
  else
    check "attention$stand_in" 300 tests $build/rooms/runtime/aten_attention_test '*VarlenAttention*:*AtenAttentionTest*'
    check "parity$stand_in" 300 tests $build/tests/parity_test 'parity.a_window_gives_the_same_on_every_plan_and_schedule'
    on_device=(comm.backend=threads)
    check "training over Gloo, one rank$stand_in" 300 train gloo comm.backend=gloo
  fi
  check "training, 2 ranks as threads" $((60 * slow)) train threads --workers 2 "${on_device[@]}"
  check "training in bf16, twice" $((60 * slow)) repeats --workers 2 model.dtype=bfloat16 "${on_device[@]}"
  check "$name_of_memcheck" $((90 * slow)) memcheck
  check "measurement$stand_in" $((60 * slow)) measurement
fi

total=$((SECONDS - begun))
{
  echo
  echo "gpu_check A, --device $device, $(git describe --always --dirty --abbrev=12 2>/dev/null || echo no git): $total s"
  printf '%s\n' "${rows[@]}"
  if [ $failed = 0 ]; then echo "PASS: ${#rows[@]} checks"; else echo "FAIL: $failed of ${#rows[@]} checks"; fi
} | tee "$table"
[ $failed = 0 ]
