"""What the random harnesses share: cases by seed within a time limit, a program that must end, and what it left.

    tests/harness/NAME.py PROGRAM [--seconds S] [--seed N] [--cases N] [--keep FOLDER]

The first case has the seed N, the next one N + 1. Without --seed, one is drawn and printed, so that every failure names
the command that repeats it. At least one case is played, however slow the machine.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from array import array

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANG_S = 1200  # what takes longer hangs: on an idle machine no program takes a hundredth of it
LONGEST_LINE = 2100  # of a message (distca/base/error.h)
COUNTS = {}  # what the cases met, by name


class Fault(Exception):
    """What a case must not meet."""


def expect(true, *words):
    if not true:
        raise Fault(" ".join(map(str, words)))


def count(what):
    COUNTS[what] = COUNTS.get(what, 0) + 1


class Outcome:
    def __init__(self, words, code, out, err):
        self.words, self.code, self.out, self.err = [str(word) for word in words], code, out, err

    def __str__(self):
        return f"{' '.join(self.words)}\nended with {self.code}: {self.err[-1500:]}"


class Running:
    """A program in a session of its own, of which nothing is left when this is left."""

    def __init__(self, words, folder, memory_bytes=None, **environment):
        self.words, self.folder = words, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files = [tempfile.TemporaryFile() for _ in range(2)]
        known = {name: value for name, value in os.environ.items() if not name.startswith(("DISTCA_", "SLURM_", "OMPI_", "PMI"))}
        known.setdefault("OMP_NUM_THREADS", "2")  # threads take memory, and a machine may have many cores
        self.process = subprocess.Popen(
            [str(word) for word in words], cwd=self.folder, env=known | {name: str(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL, stdout=self.files[0], stderr=self.files[1], start_new_session=True,
            preexec_fn=memory_bytes and (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.signal_all(signal.SIGKILL)
        self.process.wait()
        for file in self.files:
            file.close()

    def signal_all(self, which):
        try:
            os.killpg(self.process.pid, which)
        except ProcessLookupError:
            pass

    def processes(self):
        """Of its group, without those that have ended with all their threads: one of a killed process still writes."""
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                with open(f"/proc/{entry.name}/stat") as file:
                    words = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            state, group, threads = words[0], int(words[2]), int(words[17])
            if group == self.process.pid and (state not in "ZX" or threads > 1):
                found.append(int(entry.name))
        return sorted(found)

    def wait(self, limit_s=HANG_S):
        """Until no process of it is left."""
        end = time.monotonic() + limit_s
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        while code is not None and self.processes() and time.monotonic() < end:
            time.sleep(0.01)
        texts = []
        for file in self.files:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        outcome = Outcome(self.words, code, *texts)
        expect(code is not None and not self.processes(), "it hangs, or some of its processes do:", outcome)
        return outcome


def run(words, folder, **others):
    with Running(words, folder, **others) as running:
        return running.wait()


def succeed(words, folder, **others):
    outcome = run(words, folder, **others)
    expect(outcome.code == 0, outcome)
    return outcome


def clear_end(outcome, what):
    """The one line of a program that ended with exit code 1 to 3; "" where it was 0. Before it may stand warnings."""
    lines = outcome.err.splitlines()
    last = [line for line in lines if not line.startswith("warning: ")]
    expect(outcome.code in (0, 1, 2, 3), what, "an exit code of nobody:", outcome)
    expect(len(last) == (0 if outcome.code == 0 else 1), what, "not one line:", outcome)
    for line in lines:
        expect(len(line.encode()) <= LONGEST_LINE and line.isprintable(), what, "no line for people:", outcome)
    expect(not last or last[0].startswith("distca: error: "), what, "no error:", outcome)
    return last[0] if last else ""


def files_below(folder):
    """Path within -> contents, of plain files; None for a folder."""
    folder = pathlib.Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def metrics(run_folder):
    """Step -> its line. Lines must be whole, and their steps follow each other.

    Where SIGKILL meets a write, the kernel may end it, and it does so between two pages: such a last line is left out.
    """
    path = pathlib.Path(run_folder) / "metrics.jsonl"
    if not path.exists():
        return {}
    text = path.read_text()
    expect(text.endswith("\n") or len(text.encode()) % resource.getpagesize() == 0, f"{path} ends with half a line")
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    steps = [line["step"] for line in lines]
    expect(not steps or steps == list(range(steps[0], steps[0] + len(steps))), f"{path} has the steps {steps}")
    return dict(zip(steps, lines))


def tensors(path):
    """Name -> numbers of a safetensors file in fp64."""
    data = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        expect(entry["dtype"] == "F64", f"{path}: {name} is of type {entry['dtype']}")
        found[name] = array("d", data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
    return found


def data_set(program, folder, number=1):
    """The prefix of a small set of documents of 20 to 3,000 bytes, each number another."""
    draw = random.Random(number)
    text = pathlib.Path(folder) / f"text_{number}"
    text.mkdir(parents=True)
    for file in range(40):
        size, words = draw.randint(20, 3000 if file % 10 == 0 else 400), ""
        while len(words) < size:
            words += f"def {draw.choice(('alpha', 'beta', 'gamma', 'delta'))}(x):\n    return x + {draw.randrange(10)}\n\n"
        (text / f"{file:02}.py").write_text(words[:size])
    prefix = pathlib.Path(folder) / f"data/set_{number}"
    succeed([program, "data", "prepare", "--text", text, "--out", prefix], folder)
    return prefix


def main(description, play, prepare=None, add_options=lambda words: None):
    """Plays cases: play(draw, folder, options) raises Fault. `draw` is a random.Random, `folder` a new one. Before them,
    prepare(options) makes what all share in options.shared."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended, too
    words = argparse.ArgumentParser(description=description)
    words.add_argument("program", type=pathlib.Path, help="build/release/distca")
    words.add_argument("--seconds", type=float, default=60, help="no case begins later than that")
    words.add_argument("--cases", type=int, default=sys.maxsize, help="at most so many")
    words.add_argument("--seed", type=int, help="of the first case")
    words.add_argument("--keep", type=pathlib.Path, help="where folders of cases that failed are left")
    add_options(words)
    options = words.parse_args()
    options.program = options.program.resolve()
    seed = secrets.randbelow(1 << 30) if options.seed is None else options.seed
    name = pathlib.Path(sys.argv[0]).resolve()
    print(f"{name.name}: --seed {seed}", flush=True)
    begun, failed, played = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory(prefix="distca_harness_") as base:
        options.shared = pathlib.Path(base) / "shared"
        options.shared.mkdir()
        if prepare:
            prepare(options)
        while played == 0 or (played < options.cases and time.monotonic() - begun < options.seconds):
            number, played = seed + played, played + 1
            folder = pathlib.Path(base) / str(number)
            folder.mkdir()
            try:
                play(random.Random(number), folder, options)
            except Fault as fault:
                failed.append(number)
                print(f"FAILED, seed {number}: {fault}\nagain: {name.relative_to(ROOT)} {options.program} --seed {number} --cases 1",
                      flush=True)
                if options.keep:
                    shutil.copytree(folder, options.keep / f"{name.stem}_{number}", symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder)
    counts = "".join(f", {value} {what}" for what, value in sorted(COUNTS.items()))
    print(f"{name.name}: {played} cases, {len(failed)} failed{counts}, {time.monotonic() - begun:.0f} s", flush=True)
    sys.exit(1 if failed else 0)
