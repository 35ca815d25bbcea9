#!/usr/bin/env python3
"""The frame of scripts/gpu_check.sh: steps with a time limit each, figures beside their bounds, and a table last.

It is no pytest, which knows neither values beside bounds nor steps that share a stage's time, and which would have to be
carried to a machine without a network.

A line a check, its verdict first: PASS and FAIL with the value and its bound, SKIP with the reason why nothing was judged,
SHOW with what has no bound.
A step that fails or hangs hides no other one; what needs it is skipped and says so. A bound of a stage for which no figure
came counts as FAIL. Exit code: 1 if a line says FAIL, 2 for wrong arguments, else 0.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
# FlashAttention 4's, which scripts/offline_bundle.sh has packed; else where distca kernels build puts them.
KERNELS = {"DISTCA_KERNELS": str(ROOT / "offline/kernels")} if (ROOT / "offline/kernels").is_dir() else {}
BOUNDS = ROOT / "bench/gpu_bounds.toml"
STAGES = ("A", "B", "D", "E", "first")
STAGE_LIMIT_S = 480
FIRST_LIMIT_S = 570  # of the stage "first": a run of ten minutes, from nothing
LEAST_LIMIT_S = 1.0  # of a step that begins when its stage has no time left


class Missing(Exception):
    """A step cannot be made; the line of its check says why."""


def number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Stage:
    """One stage: runs steps, judges figures, keeps the lines."""

    def __init__(self, name, options, bounds, say=functools.partial(print, flush=True)):
        self.name, self.options, self.say = name, options, say
        self.on_gpu = options.device == "cuda"
        self.builds = self.on_gpu and not options.as_built
        self.bounds = dict(bounds)
        self.out = pathlib.Path(options.out)
        self.build = ROOT / options.build
        self.work = self.build / "gpu_check_work"  # what comes back from another machine is self.out alone
        for folder in (self.out, self.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.log = self.out / f"{name}.log"
        self.log.write_text("")
        self.rows, self.judged, self.parts = [], set(), 0
        self.begun = time.monotonic()
        limit = options.limit or (FIRST_LIMIT_S if name == "first" else STAGE_LIMIT_S)
        self.ends = self.part_ends = self.begun + limit * options.patience

    def left_s(self):
        return max(LEAST_LIMIT_S, min(self.ends, self.part_ends) - time.monotonic())

    @functools.cached_property
    def libraries(self):
        """For programs that were linked elsewhere: where PyTorch is here."""
        if not self.options.as_built:
            return {}
        found = subprocess.run([self.options.python, "-c", "import importlib.util as i; print(i.find_spec('torch').origin)"],
                               capture_output=True, text=True, timeout=60)
        if found.returncode != 0:
            raise Missing(f"{self.options.python} has no PyTorch")
        others = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": f"{pathlib.Path(found.stdout.strip()).parent}/lib" + (f":{others}" if others else "")}

    # --- lines

    def row(self, verdict, name, value="", bound=""):
        line = f"{verdict:<4}  {self.name}  {name:<46} {value:>10}  {bound}".rstrip()
        self.rows.append(line)
        self.say(line)

    def failed(self):
        return sum(row.startswith("FAIL") for row in self.rows)

    def show(self, name, value, words=""):
        self.row("SHOW", name, value, words)

    def skip(self, name, why):
        self.judged.add(name)
        self.row("SKIP", name, "", why)

    def fail(self, name, why):
        self.judged.add(name)
        self.row("FAIL", name, "", why)

    def figure(self, name, value):
        """Judges a value by its bound. With stand-ins, only the bounds that hold for them, too."""
        self.judged.add(name)
        bound = self.bounds.get(name)
        if bound is None:
            return self.row("FAIL", name, number(value), "no bound in bench/gpu_bounds.toml")
        words = " and ".join(f"{kind.replace('_', ' ')} {number(bound[kind])}" for kind in ("at_least", "at_most")
                             if kind in bound)
        if not self.on_gpu and not bound.get("stand_in", False):
            return self.row("SKIP", name, number(value), f"{words}: of a GPU, not of a stand-in")
        # A value that is not a number is within no bound.
        good = bound.get("at_least", float("-inf")) <= value <= bound.get("at_most", float("inf"))
        return self.row("PASS" if good else "FAIL", name, number(value), words)

    def end(self):
        """Bounds without a figure are failures: nothing is left out silently."""
        for name in self.bounds.keys() - self.judged:
            self.fail(name, "not measured")

    # --- steps

    def run(self, name, limit_s, command, **others):
        """Runs a command for at most so many seconds; what it printed. Raises Missing, in one line, if it fails."""
        limit_s = min(limit_s * self.options.patience, self.left_s())
        # Streams of ranks that share a device do not wait behind each other in the driver's queues (cli/train.cc).
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"} | KERNELS | os.environ | {
            key: str(value) for key, value in (self.libraries | others).items()}
        start = time.monotonic()
        with open(self.log, "a") as log:
            print(f"\n== {name}: {' '.join(map(str, command))}", file=log, flush=True)
        said_from = self.log.stat().st_size
        try:
            with open(self.log, "ab") as output:  # at once: this script may be ended, too
                # A session of its own, so that all that it started ends with it; no pipe, which a child could hold open.
                process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment, stdout=output,
                                           stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
                try:
                    code = process.wait(limit_s)
                except subprocess.TimeoutExpired:
                    code = None
                    os.killpg(process.pid, signal.SIGTERM)  # it may have sessions of its own to end
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(5)
                finally:
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
        except OSError as error:
            raise Missing(f"cannot be started: {error}") from None
        text = self.log.read_bytes()[said_from:].decode(errors="replace")
        with open(self.log, "a") as log:
            print(f"== {name}: exit code {code}, {time.monotonic() - start:.1f} s", file=log, flush=True)
        if code == 0:
            return text
        last = ([line.strip() for line in text.splitlines() if line.strip()] or ["it printed nothing"])[-1][:160]
        raise Missing(f"not over after {limit_s:.0f} s; {last}" if code is None else f"exit code {code}: {last}")

    def check(self, name, body):
        """Calls `body`, whose return value is the line's detail: None for what prints lines of its own. Its result, or
        None if it failed."""
        start = time.monotonic()
        try:
            detail = body()
        except Missing as why:
            self.fail(name, str(why))
        except Exception as error:  # noqa: BLE001: a fault of this script hides no other check
            self.fail(name, f"{type(error).__name__}: {error}"[:200])
        else:
            if detail is not None:
                self.row("PASS", name, f"{time.monotonic() - start:.1f} s", detail)
            return True
        return None

    def measure(self, name, body):
        """A check whose result is the figure of its name."""
        return self.check(name, lambda: self.figure(name, body()))

    def part(self, name, limit_s, body):
        """A check whose steps end together after so many seconds, and whose lines are a file as soon as it ends. Its result."""
        begun, before, limit_s = time.monotonic(), len(self.rows), limit_s * self.options.patience
        self.part_ends, self.parts = begun + limit_s, self.parts + 1
        try:
            return self.check(name, body)
        finally:
            self.part_ends = self.ends
            lines = [*self.rows[before:], f"{name}: {time.monotonic() - begun:.0f} s of at most {limit_s:.0f} s"]
            (self.out / f"{self.name}_{self.parts}_{name.replace(' ', '_')}.txt").write_text("\n".join(lines) + "\n")
            self.say(lines[-1])


# --- what stages share; each raises Missing, in one line

# Paths of programs in the build folder whose targets have another name.
TARGETS = {"bench/cuda_attention": "bench_cuda_attention", "bench/cuda_layer": "bench_cuda_layer"}
PROBE = """
import sys, torch
facts = [f"PyTorch {torch.__version__}", f"CUDA {torch.version.cuda}"]
if torch.cuda.is_available():
    facts += [f"cuDNN {torch.backends.cudnn.version()}", "NCCL %d.%d.%d" % torch.cuda.nccl.version()]
    facts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(", ".join(facts))
sys.exit("PyTorch sees no CUDA device" if sys.argv[1] == "cuda" and not torch.cuda.is_available() else 0)
"""


def no_flash4(head_dim):
    """Empty, or why there are no kernels of FlashAttention 4 for heads of this size, four for each key head."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path((KERNELS | os.environ).get("DISTCA_KERNELS") or pathlib.Path(cache) / "distca/kernels")
    made = folder / f"fa4-sm_90-d{head_dim}-bfloat16-g4"
    return "" if (made / "manifest.json").exists() else f"there is no {made}: distca kernels build --head-dim {head_dim}"


def target_of(program):
    return TARGETS.get(program, program.rpartition("/")[2])


def probe(stage):
    """Versions of what is there; clocks are read, never set."""
    if shutil.which("nvidia-smi"):
        stage.run("driver", 30, ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem", "--format=csv"])
    elif stage.on_gpu:
        raise Missing("there is no nvidia-smi on the PATH")
    return stage.run("versions", 300, [stage.options.python, "-c", PROBE, stage.options.device]).splitlines()[-1]


def built(stage, programs, keep_going=False):
    """On a GPU, configures and builds with offline/; else, or with --as-built, looks whether the programs are there. With
    `keep_going`, one that cannot be built keeps no other from being there."""
    if not stage.builds:
        for program in programs:
            if not (stage.build / program).exists():
                how = "scripts/gpu_build.sh" if stage.options.as_built else "make build"
                raise Missing(f"{stage.options.build}/{program} is not built: {how}")
        return f"{len(programs)} programs of {stage.options.build}, as they are"
    if not (ROOT / "offline").is_dir():
        raise Missing("there is no offline/: make it with scripts/offline_bundle.sh where apt is, and carry it")
    stage.run("configure", 90, ["cmake", "-G", "Ninja", "-B", stage.build, "-DCMAKE_BUILD_TYPE=Release",
                                f"-DCMAKE_PREFIX_PATH={ROOT}/offline", f"-DDISTCA_PYTHON={stage.options.python}",
                                "-DDISTCA_BUILD_PYTHON=ON"])
    targets = [target_of(program) for program in programs]
    stage.run("build", 400, ["cmake", "--build", stage.build, "-j", stage.options.jobs, "--target", *targets,
                             *(("--", "-k", 0) if keep_going else ())])
    return f"{len(targets)} targets, {stage.options.jobs} jobs"


def tests(stage, program, cases, limit_s, before=(), **environment):
    """Runs cases of a GoogleTest program; passes if at least one ran and none missed its device."""
    text = stage.run(f"{program} {cases}", limit_s, [*before, stage.build / program, "--gtest_color=no",
                                                     f"--gtest_filter={cases}"], **environment)
    if "no CUDA device" in text:
        raise Missing("skipped: no CUDA device")
    passed = len(re.findall(r"^\[       OK", text, flags=re.MULTILINE))
    if passed == 0:
        skipped = re.search(r": Skipped\n(.+)", text)
        raise Missing(f"skipped: {skipped[1]}" if skipped else f"no case matches {cases}")
    return f"{passed} cases"


def prepared(stage):
    """The prefix of a small data set: our own documents."""
    prefix = stage.work / "docs"
    if not prefix.with_suffix(".idx").exists():
        stage.run("data", 60, [stage.build / "distca", "data", "prepare", "--text", "docs", "--glob", "*.md", "--tokenizer", "byte",
                               "--out", prefix])
    return prefix


def train(stage, name, limit_s, *words, data=None, environment=None):
    """Trains; the lines of metrics.jsonl."""
    folder = stage.work / name
    stage.run(f"training {name}", limit_s, [
        stage.build / "distca", "train", f"data.prefix={data or prepared(stage)}", f"train.output_dir={folder}",
        "train.overwrite=true", *words], **(environment or {}))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- the whole


def arguments(words):
    options = argparse.ArgumentParser(
        prog="scripts/gpu_check.sh", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds and checks DistCA on a machine with a GPU.\n\n"
        "  A  build, versions, tests, late messages, trainings, a memory checker\n"
        "  B  kernels, the profile that plans read, one layer\n"
        "  D  training: losses beside the CPU's, speed beside plain PyTorch\n"
        "  E  NCCL, ranks that are killed, stopped or slow\n"
        "  first  of all these what says most, in ten minutes from nothing")
    options.add_argument("stages", nargs="+", metavar="STAGE", help="of A, B, D, E; or first")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                         help="cpu: everything in small, with stand-ins, from the programs of --build as they are")
    options.add_argument("--out", default=os.environ.get("OUT") or "runs/gpu_check", help="folder of tables and raw output")
    options.add_argument("--build", help="the build folder; build/gpu_check, or build/release with --device cpu")
    options.add_argument("--as-built", action="store_true", help="the programs of --build, made by scripts/gpu_build.sh elsewhere")
    options.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--limit", type=float, help=f"seconds of a stage; {STAGE_LIMIT_S}, of first {FIRST_LIMIT_S}")
    options.add_argument("--patience", type=float, default=1,
                         help="all limits are so many times as long: for a rehearsal on a machine that is busy or slow")
    options.add_argument("--nccl", help="a libnccl.so.2 that lets several ranks share a device, for stage E")
    asked = options.parse_args(words)
    asked.stages = [stage for word in asked.stages for stage in ([word] if word in STAGES else word)]
    if unknown := [stage for stage in asked.stages if stage not in STAGES]:
        options.error(f"there is no stage {unknown[0]}, only {', '.join(STAGES)}")
    asked.build = asked.build or ("build/gpu_check" if asked.device == "cuda" else "build/release")
    asked.out = str((ROOT / asked.out).resolve())
    return asked


def commit():
    """Of the sources, where git is there and knows them."""
    try:
        described = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def table(options, done):
    """The lines of the stages that are done, under their times and above what they count."""
    lines = [f"gpu_check {''.join(stage.name for stage in done)}, --device {options.device}, commit {commit()}: "
             + ", ".join(f"{stage.name} {stage.seconds:.0f} s" for stage in done)]
    lines += [row for stage in done for row in stage.rows]
    counts = {verdict: sum(row.startswith(verdict) for row in lines) for verdict in ("PASS", "FAIL", "SKIP", "SHOW")}
    return [*lines, ", ".join(f"{count} {verdict}" for verdict, count in counts.items())]


def bounds_of(name):
    """Figure -> bound of a stage. Of `first`: those of all stages that say so."""
    stages = tomllib.loads(BOUNDS.read_text())
    if name != "first":
        return stages.get(name, {})
    return {figure: bound for of in stages.values() for figure, bound in of.items() if bound.get("first", False)}


def main(words, stages):
    """`stages`: name -> function of a Stage."""
    options = arguments(words)
    done = []
    for name in options.stages:
        stage = Stage(name, options, bounds_of(name))
        print(f"== stage {name}, --device {options.device}", flush=True)
        stage.check(f"stage {name}", lambda: stages[name](stage))
        stage.end()
        stage.seconds = time.monotonic() - stage.begun
        done.append(stage)
        # After every stage: who ends this script early has the table of what was done.
        lines = table(options, done)
        pathlib.Path(options.out, f"table_{''.join(options.stages)}_{options.device}.txt").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines), flush=True)
    return 1 if any(stage.failed() for stage in done) else 0
