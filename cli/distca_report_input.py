"""Reads what `distca report` draws: folders of runs, traces, and what `distca simulate --json` prints."""

import json
import pathlib
import tomllib
from collections import namedtuple

from distca_trace_file import Fault, fail, member, number, read_trace, shown
from distca_trace_report import steps_of
from distca_trace_sums import Analysis

LEAST, MOST = 1e-12, 1e18  # of what has a size
LIKELY_TRACE = ('"traceEvents"', '"displayTimeUnit"')
# Fields of metrics.jsonl (docs/metrics.md): each line has the first three, and may lack the others.
STEP_NUMBERS = ("step", "step_s", "tokens")
MORE_NUMBERS = ("imbalance_before", "imbalance_after", "validation_loss")
LISTS = ("attention_s", "waited_s", "peak_bytes")
WORDS = ("plan_hash", "overlap", "kernel")


def no_constant(word):
    raise ValueError(f"{word} is no number of JSON")


def parsed(path, text, place=""):
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        fail(f"{path}{place}: byte {getattr(error, 'pos', 0) + 1} is not JSON: {error}")


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path}: byte {error.start + 1} is not UTF-8")


def above_zero(thing, key):
    return number(thing, key, LEAST)


def numbers(thing, key):
    return [number({key: value}, key) for value in member(thing, key, list)]


def check_line(line):
    """Raises a Fault unless it is a step of a run."""
    for key in STEP_NUMBERS:
        number(line, key)
    above_zero(line, "step_s")
    for key in MORE_NUMBERS:
        if line.get(key) is not None:  # a validation loss that is not finite is null
            number(line, key)
    if line.get("loss") is not None:
        number(line, "loss", -MOST)
    for key in LISTS:
        if key in line:
            numbers(line, key)
    for key in WORDS:
        if key in line:
            member(line, key, str)


def ranks_of(line):
    return max(len(line.get(key, ())) for key in LISTS)


class Run:
    """The folder of a run. lines: those of metrics.jsonl. config: the tables of config.toml."""

    def __init__(self, folder):
        self.name, self.file = str(folder), folder / "metrics.jsonl"
        if not self.file.is_file():
            fail(f"{folder}: not the folder of a run: it has no metrics.jsonl")
        *whole, _ = text_of(self.file).split("\n")  # the last line may be under way
        self.lines = [self.line(index, text) for index, text in enumerate(whole, 1)]
        if not self.lines:
            fail(f"{self.file}: it has no step yet")
        self.config = self.read_config(folder / "config.toml")

    def line(self, index, text):
        line = parsed(self.file, text, f" line {index}")
        try:
            check_line(line)
        except Fault as fault:
            fail(f"{self.file} line {index}: {fault}")
        return line

    def read_config(self, path):
        if not path.is_file():
            return {}
        try:
            return tomllib.loads(text_of(path))
        except tomllib.TOMLDecodeError as error:
            fail(f"{path}: not TOML: {error}")

    def key(self, section, key):
        values = self.config.get(section)
        return values.get(key) if isinstance(values, dict) else None

    def own_trace(self):
        """The trace that the run left in its folder; None without."""
        name = self.key("train", "trace")
        path = self.file.parent / pathlib.Path(name).name if isinstance(name, str) and name else None
        return path if path and path.is_file() else None

    def ranks(self):
        return ranks_of(self.lines[-1])

    def last_lines(self):
        """Those since the run has had as many ranks as it has at its end."""
        others = [place for place, line in enumerate(self.lines) if ranks_of(line) != self.ranks()]
        return self.lines[others[-1] + 1 if others else 0:]

    def peaks(self):
        """The most bytes of each rank, over all starts with as many ranks."""
        return [max(of_rank) for of_rank in zip(*(line["peak_bytes"] for line in self.last_lines() if line.get("peak_bytes")))]

    def steps(self):
        """The first and the last of its steps, as words."""
        return steps_of([line["step"] for line in self.lines])

    def values(self, key):
        """(step, value) of the lines that have it."""
        return [(line["step"], line[key]) for line in self.lines if line.get(key) is not None]

    def source(self):
        return f"{self.file}, {self.steps()}"


class Trace:
    """A trace of steps. machine: the one by whose prices they were predicted; None if they were measured."""

    def __init__(self, path):
        self.name = self.file = str(path)
        self.other, self.events = read_trace(path)
        self.sums = Analysis(path, self.other, self.events)
        self.machine = self.other.get("predicted", {}).get("machine")

    def rank_names(self):
        """A name for each rank of the file. A predicted trace may have some ranks of a run alone."""
        names = []
        for place, rank in enumerate(self.other["ranks"]):
            more = [f"{key} {rank[key]}" for key in ("stage", "tensor") if key in rank]
            names.append(f"rank {rank.get('rank', place)} ({', '.join([rank['role'], *more])})")
        return names

    def steps(self):
        return steps_of(self.sums.numbers)

    def source(self):
        machine = f", predicted for machine {self.machine}" if self.machine else ", measured"
        return f"{self.file}, {self.steps()}, commit {self.other['commit']}{machine}"


# points: (ms, bytes that the stage's largest rank holds from then on).
StageMemory = namedtuple("StageMemory", "name rank peak_ms operation points")


class Predicted:
    """What `distca simulate` printed of a step."""

    def __init__(self, path, root):
        self.name = self.file = str(path)
        try:
            self.machine, self.step = member(root, "machine", str), number(root, "step")
            self.read(root)
        except Fault as fault:
            fail(f"{path}: not what `distca simulate {self.OPTIONS}` prints: {fault}")

    def source(self):
        return f"{self.file}, step {self.step}, predicted for machine {self.machine}"


class Prediction(Predicted):
    """A step that `distca simulate --json` predicted. memory: a StageMemory of each stage, none in older files."""

    OPTIONS = "--json"

    def read(self, root):
        self.plan_hash = member(root, "plan_hash", str)
        self.step_s, self.tokens_per_s = above_zero(root, "step_s"), above_zero(root, "tokens_per_s")
        self.tokens = self.step_s * self.tokens_per_s
        self.bounds = {words: above_zero(root, key) for words, key in (
            ("no rank ever waited", "busy_s"), ("only core attention were even", "even_attention_s"),
            ("plain packing", "plain_packing_s")) if root.get(key) is not None or key != "plain_packing_s"}
        self.last_check = number(root, "last_check", -MOST) if root.get("last_check") is not None else None
        self.ranks = int(number(root, "ranks", 1)) if "ranks" in root else 0
        self.loads = [numbers(root, key) if key in root else [] for key in ("load_before", "load_after")]
        self.uneven = [number(root, key) if key in root else None for key in ("imbalance_before", "imbalance_after")]
        if len(self.loads[0]) != len(self.loads[1]):
            raise Fault('"load_before" and "load_after" have unequal lengths')
        self.stages = [self.stage(stage) for stage in member(root, "stages", list)]
        self.memory = [self.stage_memory(stage) for stage in root["stages"] if "memory" in stage]
        self.better = [(member(one, "number", str), number(one, "step_shorter", -MOST), member(one, "source", str))
                       for one in member(root, "better_by_a_fifth", list)]

    def stage(self, stage):
        """Its name, the seconds of its parts by their names, and the most bytes of a rank."""
        name = member(stage, "name", str)
        parts = {key[:-2].replace("_", " "): number(stage, key) for key in stage if key.endswith("_s")}
        return name, parts, number(stage, "peak_bytes")

    def stage_memory(self, stage):
        points = [self.point(point) for point in member(stage, "memory", list)]
        if not points or points[0][0] != 0 or any(ms > after for (ms, _), (after, _) in zip(points, points[1:])):
            raise Fault('"memory" does not begin at 0 ms and ascend')
        return StageMemory(member(stage, "name", str), int(number(stage, "peak_rank")), number(stage, "peak_at_ms"),
                           member(stage, "peak_in", str), points)

    @staticmethod
    def point(point):
        if not isinstance(point, list) or len(point) != 2:
            raise Fault(f'"memory" has {shown(point)}: expected [ms, bytes]')
        return number({"ms": point[0]}, "ms"), number({"bytes": point[1]}, "bytes")


class Search(Predicted):
    """Best settings, ours and rivals', that `distca simulate --find-best --json` found.

    stages: a setting each, as Prediction.stages. speeds: (step_s, tokens a second) of each.
    """

    OPTIONS = "--find-best --json"

    def read(self, root):
        self.plan_hash, self.stages, self.speeds = None, [], []
        self.ranks = int(number(root, "gpus", 1))
        for one in member(root, "contestants", list):
            name = member(one, "name", str)
            for setting in member(one, "best", list)[:1]:
                self.speeds.append((above_zero(setting, "step_s"), above_zero(setting, "tokens_per_s")))
                self.stages.append((f"{name}: {self.words(setting)}", self.parts(member(setting, "parts_s")),
                                    number(setting, "peak_bytes")))

    def words(self, setting):
        sizes = " x ".join(str(number(setting, key)) for key in ("tensor", "stages", "replicas"))
        return f"{sizes}, {member(setting, 'order', str)}"

    def parts(self, parts):
        member(parts, "attention")  # an object
        return {key.replace("_", " "): number(parts, key) for key in parts}


def read_file(path):
    try:
        with open(path, encoding="utf-8") as file:
            head = file.read(1 << 16)
    except (OSError, UnicodeDecodeError):
        head = ""  # text_of says what is wrong
    if any(word in head for word in LIKELY_TRACE):
        return Trace(path)
    root = parsed(path, text_of(path))
    if isinstance(root, dict):
        if "traceEvents" in root:
            return Trace(path)
        if "contestants" in root:
            return Search(path, root)
        if {"plan_hash", "step_s", "stages"} <= root.keys():
            return Prediction(path, root)
    fail(f"{path}: neither the folder of a run, nor a trace, nor what `distca simulate --json` prints")


def read_inputs(names):
    """The inputs in the order of the words, each once; a run is followed by the trace in its folder."""
    inputs, seen = [], set()

    def add(path, read):
        if path.resolve() not in seen:
            seen.add(path.resolve())
            inputs.append(read(path))

    paths = [pathlib.Path(name) for name in names]
    for path in paths:
        if path.is_dir():
            add(path, Run)
            trace = inputs[-1].own_trace() if isinstance(inputs[-1], Run) else None
            if trace and not any(trace.resolve() == other.resolve() for other in paths):
                add(trace, Trace)
        else:
            add(path, read_file)
    return inputs
