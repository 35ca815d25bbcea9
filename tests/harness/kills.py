#!/usr/bin/env python3
"""Runs that are killed or stopped at any time, one process or all, and go on as if nobody had disturbed them.

    tests/harness/kills.py build/release/distca --seconds 3600

After each blow all processes end, every complete checkpoint is whole, the newest is no older than before, the lines of
metrics.jsonl follow each other, and what was said to be saved is saved. In the end, losses and weights have the bits of a
run that nobody disturbed, and nothing unfinished is left.
"""

import os
import re
import signal
import time

from seeded import Fault, Running, count, data_set, expect, main, metrics, run, succeed

STEPS = 24
MOST_BLOWS = 5
POLL_S = 0.0005
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

# What a run is when it is left alone, beside its numbers of workers and stages.
WAYS = {
    "checkpoint.every_steps": (0, 1, 2, 5), "checkpoint.async": ("true", "false"), "checkpoint.keep_last": (1, 3),
    "comm.backend": ("gloo", "gloo", "gloo", "threads"), "parallel.use_distributed_optimizer": ("false", "true"),
    "servers.dedicated": (0, 0, 1), "train.validation_every": (0, 5), "model.dtype": ("float32", "bfloat16"),
}


def newest(run_folder):
    """The step of the newest complete checkpoint, or 0."""
    found = (run_folder / "checkpoints").glob("step_*")
    return max([int(place.name[5:]) for place in found if re.fullmatch(r"step_\d+", place.name)], default=0)


def unfinished(run_folder):
    return [str(path) for path in run_folder.rglob("*") if path.suffix == ".tmp" or path.name == "checkpoints.old"]


# --- blows: each names the exit codes that are right


def send(process, which):
    try:
        os.kill(process, which)
    except ProcessLookupError:
        pass


def rank_of(draw, running):
    ranks = [process for process in running.processes() if process != running.process.pid]
    return draw.choice(ranks or [running.process.pid])


def kill_all(draw, running):
    running.signal_all(signal.SIGKILL)
    return (-9,)


def kill_launcher(draw, running):
    send(running.process.pid, signal.SIGKILL)
    return (-9,)


def kill_rank(draw, running):
    victim = rank_of(draw, running)
    send(victim, signal.SIGKILL)
    return (-9,) if victim == running.process.pid else (1,)


def terminate(draw, running):
    if draw.random() < 0.5:
        running.signal_all(signal.SIGTERM)
    else:
        send(running.process.pid, signal.SIGTERM)
    return (0, 130)


def terminate_rank(draw, running):
    send(rank_of(draw, running), draw.choice(STOPS[1:]))
    return (0, 130)


def interrupt(draw, running):
    running.signal_all(signal.SIGINT)
    return (130,)


def two_signals(draw, running):
    first, second = draw.choices((signal.SIGINT, signal.SIGTERM), k=2)
    running.signal_all(first)
    time.sleep(draw.uniform(0, 1))
    running.signal_all(second)
    return (0, 130)


def stop_and_kill(draw, running):
    running.signal_all(draw.choice((signal.SIGINT, signal.SIGTERM)))
    time.sleep(draw.uniform(0, 0.05))
    running.signal_all(signal.SIGKILL)
    return (-9, 0, 130)


BLOWS = (kill_all, kill_launcher, kill_rank, kill_rank, terminate, terminate_rank, interrupt, two_signals, stop_and_kill)


def wait_for_a_moment(draw, running, run_folder, whole_s):
    """Any time of the run; or when it saves, begins to, moves a folder, or has made some steps; then a little later."""
    kind = draw.choice(("time", "time", "start", "saving", "saving", "step", "end"))
    begun, at = time.monotonic(), draw.randrange(STEPS)

    def come():
        if kind in ("time", "start"):
            return time.monotonic() - begun > (whole_s if kind == "time" else 0.3 * whole_s) * share
        if kind == "saving":
            return any((run_folder / "checkpoints").glob("*.tmp")) or (run_folder / "checkpoints.old").exists()
        if kind == "end":
            return any(run_folder.glob(".model.safetensors*")) or (run_folder / "model.safetensors").exists()
        try:
            return (run_folder / "metrics.jsonl").read_bytes().count(b"\n") > at
        except OSError:
            return False

    share = draw.random()
    while running.process.poll() is None and not come():
        time.sleep(POLL_S)
    time.sleep(draw.choice((0, 0.002, 0.05)) * draw.random())


def said(outcome):
    """The step that a line says is saved, or None."""
    match = re.search(r"stopped by SIG\w+ after step (\d+) of \d+; saved, resume ", outcome.err)
    return int(match[1]) if match else None


def check_after(outcome, codes, run_folder, before, program, folder):
    """What holds after every blow; the newest checkpoint."""
    not_begun = -outcome.code in STOPS and not outcome.out and not outcome.err  # nothing was there that could save
    expect(outcome.code in {0, *codes} or not_begun, f"not one of {codes}:", outcome)
    for wrong in ("distca: bug: ", "terminate called", "Segmentation", "Aborted"):
        expect(wrong not in outcome.err, "a bug:", outcome)
    expect(outcome.err == "" or outcome.err.endswith("\n") or outcome.code == -9, "half a line:", outcome)
    now = newest(run_folder)
    expect(now >= before, f"the newest checkpoint was that of step {before} and is that of step {now}:", outcome)
    expect(said(outcome) in (None, now), f"the newest checkpoint is that of step {now}:", outcome)
    if now:
        succeed([program, "checkpoint", "check", run_folder], folder)
    steps = list(metrics(run_folder))
    expect(steps == list(range(1, len(steps) + 1)) and len(steps) >= now, f"steps {steps}, checkpoint of {now}:", outcome)
    return now


def play(draw, folder, options):
    prefix = data_set(options.program, folder)
    way = {key: draw.choice(values) for key, values in WAYS.items()}
    stages, workers = draw.choice(((1, 1), (1, 2), (1, 2), (1, 3), (2, 2)))
    restarts = draw.choice((0, 0, 1, 2)) if way["comm.backend"] == "gloo" else 0
    way["servers.dedicated"] *= way["comm.backend"] == "gloo"

    def words(run_folder):
        keys = way | {
            "data.prefix": prefix, "train.output_dir": run_folder, "train.steps": STEPS, "data.validation_fraction": 0.1,
            "batch.nano_batch_tokens": 512, "batch.max_document_tokens": 384, "batch.nano_batches": 2, "model.hidden_size": 32,
            "model.intermediate_size": 64, "model.num_hidden_layers": 2, "model.num_attention_heads": 4,
            "model.num_key_value_heads": 2, "model.head_dim": 8, "optimizer.warmup_steps": 2, "comm.grace_s": 1,
            "comm.timeout_s": 60 + 10 * whole_s, "parallel.pipeline_model_parallel_size": stages}
        return [options.program, "train", "--workers", workers, *(f"{key}={value}" for key, value in keys.items())]

    whole_s, begun = 60, time.monotonic()
    succeed(words(folder / "straight"), folder)
    whole_s = time.monotonic() - begun
    want = metrics(folder / "straight")

    run_folder, before = folder / "run", 0
    resumed = [*words(run_folder), "--resume", "if-any", *(["--max-restarts", restarts] if restarts else [])]
    history = []
    try:
        for _ in range(draw.randint(1, MOST_BLOWS)):
            blow = draw.choice(BLOWS)
            with Running(resumed, folder) as running:
                wait_for_a_moment(draw, running, run_folder, whole_s)
                history.append(f"{blow.__name__} with {newest(run_folder)} saved and {len(want)} to make")
                codes = blow(draw, running)
                outcome = running.wait(300 + 50 * whole_s)
            count(blow.__name__)
            before = check_after(outcome, codes, run_folder, before, options.program, folder)
            if (run_folder / "model.safetensors").exists():
                break
        if before or not (run_folder / "model.safetensors").exists():
            outcome = run(resumed, folder)
            expect(outcome.code == 0, outcome)
    except Fault as fault:
        raise Fault(f"{'; '.join(history)}: {fault}") from None
    got = metrics(run_folder)
    expect(got.keys() == want.keys(), "steps", list(got))
    for step, line in want.items():
        for figure in ("loss", "grad_norm", "validation_loss"):
            expect(got[step].get(figure) == line.get(figure), f"{history}: {figure} of step {step} differs from the straight run's")
    same = (run_folder / "model.safetensors").read_bytes() == (folder / "straight/model.safetensors").read_bytes()
    expect(same, history, "other weights than the straight run's")
    expect(not unfinished(run_folder), history, "left:", unfinished(run_folder))


if __name__ == "__main__":
    main(__doc__.splitlines()[0], play)
