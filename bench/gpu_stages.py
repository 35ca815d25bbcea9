#!/usr/bin/env python3
"""The stages of scripts/gpu_check.sh. Their frame is gpu_check.py; the bounds of their figures are in gpu_bounds.toml."""

import filecmp
import functools
import hashlib
import json
import math
import re
import shutil
import sys
import time
from pathlib import Path

import gpu_training
from gpu_check import ROOT, Missing, built, main, no_flash4, prepared, probe, tests, train

SMALL_MODEL = ("batch.nano_batch_tokens=2048", "batch.max_document_tokens=2048", "model.hidden_size=128",
               "model.num_hidden_layers=2", "train.steps=4")
DIVIDED = ("parallel.tensor_model_parallel_size=2",)
TEST_S = 60
FLASH4_HEAD_DIMS = (64, 128)  # of the kernels that are tested; 128 is the benchmark's, 64 the contest's


def scale(stage):
    """Of time limits: a rehearsal may run on two slow cores, beside other tests."""
    return 1 if stage.on_gpu else 4


def tested(stage, name, program, on_gpu, with_stand_ins, **others):
    stand_in = "" if stage.on_gpu else " (stand-in)"
    return stage.check(name + stand_in, lambda: tests(stage, program, on_gpu if stage.on_gpu else with_stand_ins,
                                                      TEST_S * scale(stage), **others))


# --- A -----------------------------------------------------------------------------------------------------------------

A_PROGRAMS = ("distca", "rooms/runtime/aten_attention_test", "rooms/comm/comm_core_test", "tests/parity_test",
              "tests/late_messages_step_test", "tests/device_way_test")


def trained(stage, name, *words):
    """A short training and its figure."""
    def quotient():
        losses = [line["loss"] for line in train(stage, name, TEST_S * scale(stage), *SMALL_MODEL, *words)]
        return losses[-1] / losses[0] if len(losses) == 4 else math.nan

    stage.measure(f"{name}: loss of step 4, times step 1", quotient)


def same_weights(stage, name, runs, environment=None):
    """Trainings of two ranks that must end with the same weights; `runs`: name -> words, of two."""
    def differing():
        for run, words in runs.items():
            train(stage, run, TEST_S * scale(stage), *SMALL_MODEL, "--workers", 2, *words, environment=environment)
        return 0 if filecmp.cmp(*(stage.work / run / "model.safetensors" for run in runs), shallow=False) else 1

    stage.measure(name, differing)


def late_messages(stage):
    which = "a_hundred_plans_keep_their_bits" + ("_on_a_cuda_device" if stage.on_gpu else "")

    def differing():
        tests(stage, "tests/late_messages_step_test", f"LateMessagesStep.{which}", 3 * TEST_S * scale(stage))
        return 0  # the test says which plan differs, and fails

    stage.measure("late messages: plans with other bits", differing)


def attention_of_flash4(stage):
    """FlashAttention 4 against whole matrices; without a device, its operator over stand-ins of its kernels."""
    name = "attention of FlashAttention 4"
    if not stage.on_gpu:
        tested(stage, name, "rooms/runtime/flash4_test", "", "Flash4Test.equals*")
        return
    for number, head_dim in enumerate(FLASH4_HEAD_DIMS):
        if why := no_flash4(head_dim):
            stage.skip(f"{name}, heads of {head_dim}", why)
        else:
            tested(stage, f"{name}, heads of {head_dim}", "rooms/runtime/aten_attention_test",
                   f"head_dims/CudaFlash4Test*/{number}", "")


def memory_checker(stage):
    program = "rooms/runtime/aten_attention_test"
    if not stage.on_gpu:
        shim = {"MALLOC_CHECK_": 3, "MALLOC_PERTURB_": 165, "LD_PRELOAD": "libc_malloc_debug.so.0"}
        stage.check("memory checker (stand-in: malloc's)",
                    lambda: tests(stage, program, "VarlenAttention*", TEST_S * scale(stage), **shim))
    elif shutil.which("compute-sanitizer") is None:
        stage.skip("memory checker", "there is no compute-sanitizer on the PATH")
    else:
        checker = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--leak-check", "no")
        try:
            stage.run("memory checker's device", 120, [*checker, stage.options.python, "-c", "import torch; torch.ones(1).cuda()"])
        except Missing as why:
            stage.skip("memory checker", f"it cannot watch a process here: {why}")
            return
        stage.check("memory checker", lambda: tests(
            stage, program, "formats/CudaAttentionTest.keys_in_one_memory_are_not_copied/2", 180, before=checker))


def stage_a(stage):
    stage.check("versions", lambda: probe(stage))
    if not stage.check("build", lambda: built(stage, A_PROGRAMS)):
        return
    tested(stage, "attention", "rooms/runtime/aten_attention_test", "formats/CudaAttentionTest*:CudaAttention.*softcap*",
           "*VarlenAttention*")
    attention_of_flash4(stage)
    tested(stage, "messages between threads", "rooms/comm/comm_core_test", "ThreadGroup*:LateMessages*",
           "LateMessages*-*however_late*")
    tested(stage, "a step's gradients", "tests/parity_test", "parity.ranks_as_threads_on_one_gpu_give_the_cpus_result",
           "parity.a_window_gives_the_same_on_every_plan_and_schedule")
    tested(stage, "no wait between layers, by PyTorch's check", "tests/device_way_test", "deterministic/LayerSync.the_host_does_not_wait*",
           "layer_sync.the_check_holds*")
    late_messages(stage)
    tested(stage, "late messages: waits that are left out show", "tests/late_messages_step_test",
           "LateMessagesStep.waits_that_are_left_out_show_on_a_cuda_device",
           "LateMessagesStep.every_wait_for_what_is_received_shows_when_it_is_left_out")
    device = ("train.device=cuda", "comm.backend=threads") if stage.on_gpu else ("comm.backend=threads",)
    trained(stage, "training, one rank", *device)
    trained(stage, "training, 2 ranks as threads", "--workers", 2, *device)
    trained(stage, "training, 2 ranks that divide layers", "--workers", 2, *DIVIDED, *device)
    same_weights(stage, "bf16 training twice: files of weights that differ",
                 {run: ("model.dtype=bfloat16", *device) for run in ("twice_a", "twice_b")})
    memory_checker(stage)


# --- B -----------------------------------------------------------------------------------------------------------------


def profile(stage):
    """The grid that plans read, of the kernel that is fastest for each length."""
    device = ("--device", "cuda", "--max-tokens", 131072) if stage.on_gpu else ("--max-tokens", 128, "--seconds", 1)
    out = stage.out / "profile.json"
    stage.run("profile", 130 * scale(stage), [stage.build / "distca", "profile", "--attention", *device, "--out", out])
    found = json.loads(out.read_text())
    return f"{found['path']}; forward {found['forward_kernels']}, backward {found['backward_kernels']}"


def measured(stage, name, limit_s, program, *words, keep=None, **environment):
    """The lines of a benchmark, which are kept as KEEP.jsonl, and in the log in any case."""
    text = stage.run(name, limit_s, [stage.build / "bench" / program, "--device", stage.options.device, *words], **environment)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if keep:
        (stage.out / f"{keep}.jsonl").write_text("\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def median(values):
    return sorted(values)[len(values) // 2]


def copies(line, way):
    """What our copies around the operator take of a call."""
    share = 1 - median([ours / alone for ours, alone in zip(line[way], line[f"{way}_operator"])])
    return f"copies {100 * share:.1f} % of the time, {line[f'{way}_copied_bytes'] / 1e6:.1f} MB"


def stand_ins(stage):
    """A folder of stand-ins for FlashAttention 4's kernels, for heads of 32, two for each key head."""
    folder = stage.work / "stand_ins/fa4-sm_90-d32-bfloat16-g2"
    folder.mkdir(parents=True, exist_ok=True)
    files = {mask: str(stage.build / f"rooms/runtime/libkernels_standin_{which}.so")
             for mask, which in (("causal", "causal"), ("full", "full"), ("window", "full"))}
    steps = ("forward", "backward", "backward_deterministic", "behind_backward_q", "behind_backward_kv")
    (folder / "manifest.json").write_text(json.dumps({
        "format": "distca-kernels", "version": 1, "provider": "fa4", "packages": {"flash-attn-4": "stand-in"}, "arch": "host",
        "cuda": 13, "head_dim": 32, "dtype": "bfloat16", "heads_of_a_key_head": 2,
        "masks": {mask: {"tiles": [64 if mask == "causal" else 80, 128], "kernels": {step: file for step in steps}}
                  for mask, file in files.items()},
        "sha256": {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files.values()}}))
    return {"DISTCA_KERNELS": folder.parent, "DISTCA_STAND_INS_COMPUTE_NOTHING": 1}


def both_attentions(stage, limit_s=110, rounds=7, keep=True):
    attention(stage, limit_s, rounds, keep)
    if stage.on_gpu and (why := no_flash4(128)):
        for way in ("forward", "backward"):
            stage.skip(f"FlashAttention 4, 128-token shards, rows adjoining: {way}, of long", why)
        return
    attention(stage, limit_s, rounds, keep, kernel="fa4")


def attention(stage, limit_s, rounds, keep, kernel="aten"):
    small = () if stage.on_gpu else ("--query-tokens", 512, "--key-tokens", 4096, "--heads", 2, "--head-dim", 32,
                                     "--document-tokens", 512, "--most-shard", 32)
    of = "FlashAttention 4, " if kernel == "fa4" else ""
    lines = measured(stage, f"{of}attention", limit_s * scale(stage), "cuda_attention", "--rounds", rounds if stage.on_gpu else 2,
                     "--kernel", kernel, *small, keep=keep and f"cuda_attention_{kernel}",
                     **(stand_ins(stage) if of and not stage.on_gpu else {}))
    for line in lines:
        if line["line"] == "shards":
            stage.show(f"{of}{line['shard']} queries, random contexts, TFLOP/s", "",
                      ", ".join(f"{key.replace('_', ' ')} {median(line[key]) / 1e3:.3g}" for key in
                                ("peak", "forward", "forward_long", "backward", "backward_long", "backward_deterministic")))
        if line["line"] == "document":
            for way in ("forward", "backward"):
                share = median([a / b for a, b in zip(line[way], line[f"{way}_long"])])
                if line["rows"] == "adjoining":
                    stage.show(f"{of}128-token shards, rows adjoining: {way}", "", copies(line, way))
                    stage.figure(f"{of}128-token shards, rows adjoining: {way}, of long", share)
                else:
                    stage.show(f"{of}128-token shards, rows {line['rows']}: {way}, of long", f"{share:.3f}", copies(line, way))


def layer(stage):
    small = () if stage.on_gpu else ("--tokens", 256, "--hidden", 64, "--intermediate", 128, "--heads", 4, "--kv-heads", 2,
                                     "--rounds", 2, "--type", "float32")
    lines = measured(stage, "one layer", 100 * scale(stage), "cuda_layer", *small, keep="cuda_layer")
    found = {(line["ranks"], line["documents"], line["tokens"], line["deterministic"]): line
             for line in lines if line["line"] == "layer"}
    for (ranks, documents, tokens, deterministic), line in found.items():
        stage.show(f"one layer, {ranks} ranks, {documents}, {tokens} tokens{', deterministic' if deterministic else ''}",
                   f"{line['device_ms']:.3g} ms",
                   f"host {line['host_ms']:.3g} ms a rank, {line['operators']:.0f} operators a rank, "
                   f"{line['sent_bytes'] / 1e6:.3g} MB sent, {line['copied_bytes'] / 1e6:.3g} MB copied")
    most = max(line["tokens"] for line in found.values())
    alone, one, four = found[1, "mixed", most // 4, False], found[1, "mixed", most, False], found[4, "mixed", most, False]
    stage.figure("one layer: host time, of device time", alone["host_ms"] / alone["device_ms"])
    stage.figure("one layer on 4 ranks: device time, of one rank's", four["device_ms"] / one["device_ms"])


B_PROGRAMS = ("distca", "bench/cuda_attention", "bench/cuda_layer")


def stage_b(stage):
    if stage.check("build", lambda: built(stage, B_PROGRAMS)):
        stage.check("one layer", lambda: layer(stage))
        stage.check("attention", lambda: both_attentions(stage))
        stage.check("profile", lambda: profile(stage))


# --- D -----------------------------------------------------------------------------------------------------------------


def stage_d(stage):
    if not stage.check("build", lambda: built(stage, ("distca",))):
        return
    for dtype in ("fp64", "fp32", "bf16"):
        stage.check(f"losses in {dtype}", lambda: gpu_training.losses(stage, dtype))
    for words, tokens in (("32K", 32768), ("128K", 131072)):
        stage.check(f"{words}-token documents", lambda: gpu_training.contest(stage, words, tokens))
    stage.check("Python operators", lambda: gpu_training.operators(stage, nccl_way))


# --- E -----------------------------------------------------------------------------------------------------------------


def nccl_way(stage):
    """(what carries the messages, words for distca train, environment), or Missing that says why there is none."""
    try:
        stage.run("is NCCL known", 30, [stage.build / "distca", "train", "--print-config", "comm.backend=nccl"])
        known = True
    except Missing:
        known = False
    if not stage.on_gpu:
        stand_in = stage.build / "rooms/comm/libnccl_standin.so"
        if known and stand_in.exists():
            return "NCCL's stand-in", ("comm.backend=nccl",), {"DISTCA_NCCL_LIBRARY": stand_in}
        return "Gloo, a stand-in", (), {}
    if not known:
        raise Missing("this build has no comm.backend=nccl")
    device = ("train.device=cuda", "comm.backend=nccl")
    count = int(stage.run("devices", 60, [stage.options.python, "-c", "import torch; print(torch.cuda.device_count())"]).split()[-1])
    if count == 0:
        raise Missing("PyTorch sees no CUDA device")
    if count > 1:
        return f"NCCL, {count} devices", device, {}
    if stage.options.nccl is None:
        raise Missing("one device, and no library that lets ranks share it: carry one of NCCL 2.30 or newer, say --nccl FILE")
    return "NCCL, one device for two ranks", device, {
        "DISTCA_NCCL_LIBRARY": (ROOT / stage.options.nccl).resolve(), "DISTCA_NCCL_SAME_DEVICE": 1,
        "NCCL_MULTI_RANK_GPU_ENABLE": 1}


SAID = {"killed": r"rank 1 was killed by signal 9 \(SIGKILL\)", "stopped": r"rank 1 is silent since ",
        "slow": r"rank 1 is (alive but behind|silent since) "}


COMM_TIMEOUT_S = 3  # of the bounds
LONG_OPERATIONS = ("plan.scheduler=local", "attention.kernel=reference")


def comm_timeout_s(stage, words, environment):
    """On a CPU, which may be slow or busy, a whole short run takes as long, so no wait of a healthy rank does."""
    if stage.on_gpu:
        return COMM_TIMEOUT_S
    begin = time.monotonic()
    train(stage, "measured", TEST_S * scale(stage), *SMALL_MODEL, "--workers", 2, *words, *LONG_OPERATIONS,
          environment=environment)
    return max(COMM_TIMEOUT_S, time.monotonic() - begin)


def lost_rank(stage, fault, timeout, words, environment):
    """timeout(): comm.timeout_s."""
    figure = f"{fault} rank: seconds until all ranks have ended"

    def seconds():
        prepared(stage)
        timeout_s = timeout()
        # A rank is slow where one operation takes longer than the timeout: on a CPU, where the rank stands still for a part
        # of the timeout in which it is not taken for silent; a device goes on while its host stands still, so there the
        # host does for longer than the timeout.
        slow = fault == "slow"
        how = f"slow:{2 * timeout_s if stage.on_gpu else timeout_s / 4}" if slow else fault
        long = LONG_OPERATIONS if slow and not stage.on_gpu else ()
        folder = stage.work / f"lost_{fault}"
        text = stage.run(figure, 120, [
            stage.options.python, "bench/gpu_faults.py", how, folder, "--", stage.build / "distca", "train",
            f"data.prefix={stage.work}/docs", f"train.output_dir={folder}/run", "train.overwrite=true", *SMALL_MODEL,
            "train.steps=1000000", "train.validation_every=0", f"comm.timeout_s={timeout_s}", "comm.grace_s=2", "--workers", 2,
            *words, *long],
            GPU_CHECK_PATIENCE=stage.options.patience, **environment)
        told = json.loads(text.splitlines()[-1])
        if told["exit_code"] != 1 or not re.search(SAID[fault], told["last"]):
            raise Missing(f"exit code {told['exit_code']}, last line: {told['last'][:160]}")
        return told["seconds"] - (0 if fault == "killed" else timeout_s - COMM_TIMEOUT_S)

    stage.measure(figure, seconds)


def nccl_tests(stage, carrier, environment):
    """What the tests of the stand-in ask for, but for its faults, of the library itself: ranks are threads."""
    cases, others = "NcclGroup.*:NcclFaults.*", environment | {"DISTCA_TEST_NCCL": "cuda"}
    if not stage.on_gpu:
        cases, others = "NcclGroup.messages*:NcclGroup.late*:NcclGroup.streams*:NcclFaults.a_rank_that_fails*", {}
        carrier = "NCCL's stand-in"
    stage.check("tests of NCCL over " + carrier,
                lambda: tests(stage, "rooms/comm/nccl_test", cases, 2 * TEST_S if stage.on_gpu else TEST_S, **others))


E_PROGRAMS = ("distca", "rooms/comm/nccl_test")


def stage_e(stage):
    if not stage.check("build", lambda: built(stage, E_PROGRAMS)):
        return
    try:
        carrier, words, environment = nccl_way(stage)
    except Missing as why:
        for name in stage.bounds:
            stage.skip(name, str(why))
        return
    stage.show("messages are carried by", "", carrier)
    device = [word for word in words if word.startswith("train.device")]
    same_weights(stage, "weights of two ranks: files that differ from those of threads",
                 {"threads": ("comm.backend=threads", *device), "processes": words}, environment)
    same_weights(stage, "weights of two ranks that divide layers: files that differ from those of threads",
                 {"divided threads": (*DIVIDED, "comm.backend=threads", *device), "divided processes": (*DIVIDED, *words)},
                 environment)
    timeout = functools.cache(lambda: comm_timeout_s(stage, words, environment))
    for fault in SAID:
        lost_rank(stage, fault, timeout, words, environment)
    nccl_tests(stage, carrier, environment)  # last: users' ranks are processes


# --- first -------------------------------------------------------------------------------------------------------------

FIRST_PROGRAMS = ("distca", "rooms/runtime/aten_attention_test", "bench/cuda_attention")


def stage_first(stage):
    """What says most comes first. The limits of all parts are those of the stage together, so one that hangs takes no time
    from another; and a program that cannot be built fails its own parts alone."""

    def part(name, limit_s, *bodies):
        stage.part(name, limit_s * scale(stage), lambda: [stage.check(*body) for body in bodies] and None)

    part("build", 255, ("versions", lambda: probe(stage)), ("build", lambda: built(stage, FIRST_PROGRAMS, keep_going=True)))
    part("operators", 50, ("attention of FlashAttention 4", lambda: attention_of_flash4(stage)), ("attention", lambda: tests(
        stage, FIRST_PROGRAMS[1], "formats/CudaAttentionTest*" if stage.on_gpu else "*VarlenAttention*", TEST_S * scale(stage))))
    part("shards", 75, ("shards", lambda: both_attentions(stage, 60, 5, keep=False)))
    part("losses", 50, *((f"losses in {dtype}", lambda dtype=dtype: gpu_training.losses(
        stage, dtype, steps=3, ranks=(1, 2) if stage.on_gpu else (2,))) for dtype in ("fp32", "bf16")))
    part("step time", 95, ("32K-token documents", lambda: gpu_training.contest(stage, "32K", 32768, ("ours", "rival", "flash4"))))
    part("Python operators", 45, ("Python operators", lambda: gpu_training.operators(stage, nccl_way)))


def programs():
    """All that stages run."""
    return sorted({*FIRST_PROGRAMS, *A_PROGRAMS, *B_PROGRAMS, *E_PROGRAMS})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], {"A": stage_a, "B": stage_b, "D": stage_d, "E": stage_e, "first": stage_first}))
