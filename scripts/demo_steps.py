#!/usr/bin/env python3
"""How many steps of the demo this machine trains within four minutes: prints the words for `distca train`.

    scripts/demo_steps.py PROGRAM [WORD ...]

It plays a few steps with the WORDs that the user gave the demo, says on stderr what they took and what follows, and
prints `train.steps=60 optimizer.warmup_steps=12`. It prints nothing where these words say the number of steps
themselves, go on with a run or train nothing. The schedule of the learning rate ends with the last step, whichever it is.
"""
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time

MOST, LEAST = 100, 1  # steps; 100 stand in configs/demo.toml
MOST_S = 0.9 * 4 * 60  # a tenth is left for steps that take longer than those that were measured
VALIDATION_EVERY = 20  # configs/demo.toml
VALIDATION_STEPS = 2   # the validation loss takes as long as at most so many steps
WARMUP_SHARE = 5       # a fifth of the steps, as in configs/demo.toml
PROBE = ("train.steps=3", "data.validation_fraction=0", "train.exit_duration_in_mins=0.5", "checkpoint.every_steps=0",
         "train.overwrite=true")
SAID_ALREADY = re.compile(r"train\.steps=|--(resume|dry-run|print-config|help)|-h$")
SETTING = re.compile(r"(?!train\.trace)[a-z]+\.\w+=")


def seconds(steps, step_s, start_s):
    """What a training of so many steps takes at most."""
    return start_s + step_s * (steps + VALIDATION_STEPS * math.ceil(steps / VALIDATION_EVERY))


def choose(step_s, start_s):
    """The number of steps where one takes step_s, and beginning and ending a run start_s."""
    return max((steps for steps in range(LEAST, MOST + 1) if seconds(steps, step_s, start_s) <= MOST_S), default=LEAST)


def measure(program, words):
    """(step_s, start_s) of a few steps with the user's settings."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        probe = subprocess.run(
            [program, "train", "--config", "configs/demo.toml", "--workers", "2", *filter(SETTING.match, words), *PROBE,
             f"train.output_dir={folder}/run"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if probe.returncode != 0:
            sys.stderr.write(probe.stderr)
            sys.exit(probe.returncode)
        lines = (pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step_s"] for line in lines]
    return max(steps[1:] or steps), max(0, time.monotonic() - begin - sum(steps))  # the first step takes longer


def main(program, *words):
    if any(map(SAID_ALREADY.match, words)):
        return
    step_s, start_s = measure(program, words)
    steps = choose(step_s, start_s)
    most = f"; {MOST} would take {seconds(MOST, step_s, start_s) / 60:.0f} minutes" if steps < MOST else ""
    warmup = steps // WARMUP_SHARE
    print(f"{steps} steps, {warmup} of them to warm up, for a step takes {step_s:.2g} s on this machine, and the training shall end within 4 minutes{most}",
          file=sys.stderr)
    print(f"train.steps={steps} optimizer.warmup_steps={warmup}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
