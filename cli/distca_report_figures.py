"""Figures of `distca report` that are drawn from metrics of runs and from predictions."""

from collections import namedtuple
from itertools import pairwise
from statistics import median

from distca_report_input import LEAST
from distca_report_page import Figure
from distca_report_svg import bars, evenly, legend, line_chart, number_text, scatter
from distca_trace_report import BYTE_UNITS, shown_bytes

MOST_POINTS = 200  # A line has no more: then neighbouring steps are one, with their mean.
# The classes of a predicted step's parts. A part without one is grey.
STAGE_PARTS = {"attention": "k-attention", "linear": "k-linear", "recomputed": "k-tensor", "copies": "k-copy",
               "issues": "k-issue", "copies issues": "k-copy", "waits for peers": "k-wait",
               "waits for bytes": "k-message", "idle at the end": "k-bubble"}
COMPUTED = ("attention", "linear", "recomputed")
# The classes of marks, by what would be different in a step.
MARKS = {"no rank ever waited": "mark", "only core attention were even": "mark even", "plain packing": "mark packing"}
PREDICTED = "Predicted steps were not run: they are played by the prices of the named machine (docs/simulator.md)."


def thinned(points):
    """At most MOST_POINTS points, each the mean of equally many neighbours; and of how many."""
    each = -(-len(points) // MOST_POINTS)
    groups = [points[at:at + each] for at in range(0, len(points), each)]
    return [(group[len(group) // 2][0], mean([y for _, y in group])) for group in groups], each


def time_unit(seconds):
    """The unit in which so long a time is read well: its name, and how many are a second."""
    return ("s", 1) if seconds >= 0.1 else ("ms", 1e3) if seconds >= 1e-4 else ("µs", 1e6)


def mean(values):
    return sum(values) / len(values)


def columns(series):
    """The table of lines that share their steps: (header, rows)."""
    steps = sorted({step for _, points in series for step, _ in points})
    values = [dict(points) for _, points in series]
    return (["step", *(name for name, _ in series)],
            [[number_text(step), *(number_text(of[step]) if step in of else "" for of in values)] for step in steps])


def chart(heading, series, y_label, sources, assumes, from_zero=True):
    made = [(name, *thinned(points)) for name, points in series if points]
    series, most = [(name, points) for name, points, _ in made], max(each for *_, each in made)
    return Figure(heading, line_chart(series, "step", y_label, heading, from_zero), sources,
                  [*assumes, *[f"Each point is the mean of {most} steps."] * (most > 1)], columns(series))


def balance_of_run(run):
    before, after = run.values("imbalance_before"), run.values("imbalance_after")
    if not before or not after:
        return None
    since = run.last_lines()[0]["step"]
    means = [mean([value for step, value in points if step >= since] or [value for _, value in points]) for points in (before, after)]
    return chart(f"Balancing takes core attention's max/mean from {means[0]:.3f} to {means[1]:.3f}",
                 [("before balancing (plain packing)", before), ("after balancing", after)],
                 "max/mean over the servers", [run.source()],
                 ["Loads are the plans' counts of (query, key) pairs, or their prices, not times. 1 is even.",
                  "The heading has means over the steps since the run has had its present ranks."], from_zero=False)


def attention_of_run(run):
    times = [line["attention_s"] for line in run.last_lines() if line.get("attention_s")]
    if not times or len({len(of) for of in times}) > 1 or len(times[0]) < 2:
        return None
    means = [1e3 * mean(of) for of in zip(*times)]
    rank, uneven = means.index(max(means)), max(means) / (mean(means) or 1)
    heading = f"Measured core attention: max/mean {uneven:.3f}, rank {rank} takes longest"
    waits = [line["waited_s"] for line in run.last_lines() if len(line.get("waited_s", ())) == len(means)]
    waited = [1e3 * mean(of) for of in zip(*waits)]
    parts = [("k-attention", "core attention", "core attention", "core attention ms", means),
             ("k-wait", "waiting", "waiting for messages, and for the last rank", "waited ms", waited)][:2 if waited else 1]
    rows = [(f"rank {index}", [(kind, of[index], words) for kind, words, *_, of in parts], [],
             " + ".join(f"{number_text(of[index])} ms" for *_, of in parts)) for index in range(len(means))]
    keys = [(kind, meaning) for kind, _, meaning, *_ in parts]
    table = (["rank", *(column for *_, column, _ in parts)],
             [[str(index), *(number_text(of[index]) for *_, of in parts)] for index in range(len(means))])
    return Figure(heading, legend(keys) + bars(rows, "ms a step, mean of the steps", heading), [run.source()],
                  ["Core attention is the kernel's time in both passes: of the processor where a rank has one thread."],
                  table)


def loads_of_prediction(prediction):
    before, after = prediction.loads
    if len(before) < 2 or not sum(before) or not sum(after):
        return None
    # Servers without work of their own, or of unequal capacity, have other shares than the mean.
    uneven = [max(loads) / mean(loads) if given is None else given for loads, given in zip((before, after), prediction.uneven)]
    heading = f"The predicted plan takes core attention's max/mean from {uneven[0]:.3f} to {uneven[1]:.3f}"
    rows = [(f"server {server}", [("k-attention", load, "after balancing")],
             [("mark packing", packed, "before balancing (plain packing)")], number_text(load))
            for server, (packed, load) in enumerate(zip(before, after))]
    keys = [("k-attention", "after balancing"), ("mark packing", "before balancing (plain packing)")]
    return Figure(heading, legend(keys) + bars(rows, "(query, key) pairs", heading), [prediction.source()],
                  ["Loads are (query, key) pairs of one layer, in a pipeline of all layers of forward, summed over nano-batches. "
                   "The heading's max/mean is that of one nano-batch after another."],
                  (("server", "before", "after"), [[str(server), number_text(one), number_text(other)]
                                                   for server, (one, other) in enumerate(zip(before, after))]))


def condition(words):
    return words if words == "plain packing" else f"if {words}"


# Bars of what tensors take: what their colours mean, and what counts.
HELD = {"s0": ("measured, each rank", "Measured: the most that a rank's tensors took at a time since the run began. Ranks that are "
                                      "threads, or share a GPU, share its tensors."),
        "s1": ("predicted, the largest rank of a stage", "Predicted: what docs/memory.md counts, for train.device and comm.backend "
                                                         "of the configuration.")}


def memory(runs, predictions):
    rows = [(f"{run.name}: rank {rank}", "s0", "measured", peak) for run in runs for rank, peak in enumerate(run.peaks())]
    rows += [(f"{prediction.name}: {name}", "s1", f"predicted, {prediction.machine}", peak)
             for prediction in predictions for name, _, peak in prediction.stages]
    if not rows:
        return None
    name, _, how, most = max(rows, key=lambda row: row[3])
    heading = f"Tensors take at most {shown_bytes(most)} of a rank at a time, {how} ({name})"
    drawn = [(name, [(kind, peak, how)], [], shown_bytes(peak)) for name, kind, how, peak in rows]
    used = {kind: words for kind, words in HELD.items() if any(row[1] == kind for row in rows)}
    return Figure(heading, legend((kind, meaning) for kind, (meaning, _) in used.items()) + bars(drawn, "bytes", heading, shown_bytes),
                  [one.source() for one in (*runs, *predictions)], [counted for _, counted in used.values()],
                  (("where", "how", "peak", "bytes"),
                   [[name, how, shown_bytes(peak), f"{peak:.0f}"] for name, _, how, peak in rows]))


def memories(runs, predictions):
    """Predictions of steps that were run stand with the runs, others apart: machines differ in size by orders."""
    hashes = {line.get("plan_hash") for run in runs for line in run.lines}
    ran = [one for one in predictions if one.plan_hash in hashes]
    return [memory(runs, ran), memory([], [one for one in predictions if one not in ran])]


MOST_STAGES = 8  # lines of a figure that are told apart
TIMES = 20  # rows of a table of what is held


def as_steps(points, end):
    """The points of a line that keeps each value until the next one, up to the end."""
    ends = [*(at for at, _ in points[1:]), end]
    return [place for (at, value), until in zip(points, ends) for place in ((at, value), (until, value))]


def most_held(points, begin, end):
    """The most that is held at any time from the begin to the end."""
    before = [held for at, held in points if at <= begin][-1:]
    return max(before + [held for at, held in points if begin <= at <= end])


def memory_over_time(prediction):
    """What the largest rank of each stage holds over a predicted step; None where the file does not say it."""
    stages = evenly(prediction.memory, MOST_STAGES)
    if not stages:
        return None
    peaks = {stage.name: max(held for _, held in stage.points) for stage in prediction.memory}
    end = max([1e3 * prediction.step_s, *(stage.points[-1][0] for stage in stages)])
    largest = max(prediction.memory, key=lambda stage: peaks[stage.name])
    *_, unit = shown_bytes(peaks[largest.name]).split()
    count = 1024 ** BYTE_UNITS.index(unit)
    heading = (f"The memory of each stage over time: at most {shown_bytes(peaks[largest.name])} ({largest.name}) "
               f"after {number_text(largest.peak_ms)} ms")
    series = [(f"{stage.name}, rank {stage.rank}",
               [(ms, held / count) for ms, held in as_steps(stage.points, end)]) for stage in stages]
    left_out = [f"{len(stages)} of {len(prediction.memory)} stages are drawn."] * (len(stages) < len(prediction.memory))
    assumes = [PREDICTED, "Of each stage, the rank whose tensors take most at a time. What counts is in docs/memory.md.",
               "An operation holds the most that it ever takes from its begin to its end.", *left_out,
               *(f"{stage.name}: {peaks[stage.name]:,.0f} bytes after {number_text(stage.peak_ms)} ms, in "
                 f"{stage.operation}." for stage in stages)]
    rows = [[f"{number_text(begin)} to {number_text(until)}",
             *(shown_bytes(most_held(stage.points, begin, until)) for stage in stages)]
            for begin, until in pairwise(end * at / TIMES for at in range(TIMES + 1))]
    return Figure(heading, line_chart(series, "ms", unit, heading), [prediction.source()], assumes,
                  (["most held, ms", *(stage.name for stage in stages)], rows))


class Parts:
    """How stages, or settings, spend a step: bars with what their colours mean, and a table.

    stages: (name, {part: seconds}, bytes). marks: (class, seconds, meaning).
    """

    def __init__(self, stages, marks=()):
        names = {part for _, parts, _ in stages for part, seconds in parts.items() if seconds}
        shown = [*(part for part in STAGE_PARTS if part in names), *sorted(names - STAGE_PARTS.keys())]
        totals = [sum(parts.values()) for _, parts, _ in stages]
        visible = [(STAGE_PARTS.get(part, "k-other"), part) for part in shown
                   if any(parts.get(part, 0) > 1e-3 * max(totals) for _, parts, _ in stages)]
        self.unit, self.factor = time_unit(max(totals, default=0))
        marks = [(kind, seconds * self.factor, words) for kind, seconds, words in marks]
        rows = [(name, [(kind, parts.get(part, 0) * self.factor, part) for kind, part in visible], marks,
                 self.text(total)) for (name, parts, _), total in zip(stages, totals)]
        keys = [*visible, *((kind, words) for kind, _, words in marks)]
        self.drawing = legend(keys) + bars(rows, f"{self.unit} a step", "Parts of a step")
        self.table = (["", *(f"{part} {self.unit}" for part in shown)],
                      [[name, *(number_text(parts.get(part, 0) * self.factor) for part in shown)]
                       for name, parts, _ in stages])

    def text(self, seconds):
        return f"{number_text(seconds * self.factor)} {self.unit}"


def parts_of_prediction(prediction):
    marks = [(MARKS[words], seconds, condition(words)) for words, seconds in prediction.bounds.items()]
    parts = Parts(prediction.stages, marks)
    busy = prediction.bounds["no rank ever waited"]
    heading = (f"A predicted step takes {parts.text(prediction.step_s)}, "
               f"{100 * prediction.step_s / busy - 100:.1f} % more than if no rank ever waited")
    best = [f"{name}: with 20 % better, the step is {100 * share:.1f} % shorter; {source}."
            for name, share, source in prediction.better[:3]]
    check = [] if prediction.last_check is None else [
        f"When the prices of {prediction.machine} were measured, a step of its own was predicted "
        f"{100 * prediction.last_check:+.1f} % off."]
    assumes = [PREDICTED, *check, "Parts are means over the ranks of a stage.", *best,
               *(f"{words[0].upper()}{words[1:]}: {parts.text(seconds)} a step." for _, seconds, words in marks)]
    return Figure(heading, parts.drawing, [prediction.source()], assumes, parts.table)


def parts_of_search(search):
    if not search.stages:
        return None
    parts, (step_s, _) = Parts(search.stages), search.speeds[0]
    return Figure(f"A step takes {parts.text(step_s)} with the best setting of {search.stages[0][0].partition(':')[0]}",
                  parts.drawing, [search.source()],
                  [PREDICTED, "Each setting is the best of its kind: tensor parallelism x stages x replicas, order.",
                   "Parts are means over all ranks."], parts.table)


# How fast a setting is. tokens: those of a step. bounds: {what would be different: tokens a second}.
Speed = namedtuple("Speed", "source name tokens_per_s tokens how ranks bounds")


def speed_of_run(run):
    """The median over its steps with as many ranks as at its end, without the first, which still warms up."""
    lines = run.last_lines()[1:] or run.last_lines()
    step_s, tokens = (median(line[key] for line in lines) for key in ("step_s", "tokens"))
    return Speed(run.source(), run.name, tokens / step_s, round(tokens), "measured", run.ranks(), {})


def speeds_of(runs, predictions, searches):
    speeds = [speed_of_run(run) for run in runs]
    for one in predictions:
        bounds = {words: one.tokens / seconds for words, seconds in one.bounds.items()}
        speeds.append(Speed(one.source(), one.name, one.tokens_per_s, round(one.tokens), f"predicted, {one.machine}", one.ranks,
                            bounds))
    for search in searches:
        for (name, parts, _), (step_s, tokens_per_s) in zip(search.stages, search.speeds):
            busy = sum(parts.get(part, 0) for part in COMPUTED)
            bounds = {"no rank ever waited": step_s * tokens_per_s / busy} if busy >= LEAST else {}
            speeds.append(Speed(search.source(), name, tokens_per_s, round(step_s * tokens_per_s),
                                f"predicted, {search.machine}", search.ranks, bounds))
    return speeds


def grouped_by(speeds, key):
    groups = {}
    for speed in speeds:
        groups.setdefault(key(speed), []).append(speed)
    return groups


def sources_of(speeds):
    return list(dict.fromkeys(speed.source for speed in speeds))


def speed_heading(speeds):
    first, fastest = speeds[0], max(speeds, key=lambda speed: speed.tokens_per_s)
    if len(speeds) == 1:
        plain = first.bounds["plain packing"]
        return f"{first.name} is {first.tokens_per_s / plain:.3f} times as fast as plain packing ({first.how})"
    other = max(speeds[1:], key=lambda speed: speed.tokens_per_s) if fastest is first else first
    times = fastest.tokens_per_s / other.tokens_per_s
    return f"{fastest.name} is {times:.3f} times as fast as {other.name} ({first.how})"


def speed_figure(speeds):
    """A figure of settings whose steps have equally many tokens, on as many ranks of the same machine."""
    first, heading = speeds[0], speed_heading(speeds)
    kind = "s0" if first.how == "measured" else "s1"
    bounds = [words for words in MARKS if any(words in speed.bounds for speed in speeds)]
    rows = [(speed.name, [(kind, speed.tokens_per_s, speed.how)],
             [(MARKS[words], speed.bounds[words], words) for words in bounds if words in speed.bounds],
             f"{number_text(speed.tokens_per_s)} tokens/s") for speed in speeds]
    keys = [(kind, first.how), *((MARKS[words], condition(words)) for words in bounds)]
    assumes = [f"All steps have {number_text(first.tokens)} tokens. The page cannot know whether model, documents and "
               "machine are the same, too.",
               "Measured: the median step of a run without its first. For a claim with an interval, runs must take "
               "turns (bench/)." if first.how == "measured" else PREDICTED]
    if "plain packing" in bounds:
        assumes.append("Plain packing (plan.scheduler=local) is predicted for the same documents by the same prices.")
    table = [[speed.name, speed.how, str(speed.ranks or ""), number_text(speed.tokens_per_s),
              f"{speed.tokens_per_s / first.tokens_per_s:.3f}",
              *(number_text(speed.bounds[words]) if words in speed.bounds else "" for words in bounds)]
             for speed in speeds]
    return Figure(heading, legend(keys) + bars(rows, "tokens/s", heading), sources_of(speeds), assumes,
                  (("setting", "how", "ranks", "tokens/s", "times the first", *bounds), table))


def speed_figures(speeds):
    groups = grouped_by(speeds, lambda speed: (speed.how, speed.tokens, speed.ranks)).values()
    return [speed_figure(of) for of in groups if len(of) > 1 or "plain packing" in of[0].bounds]


def scalings(speeds):
    """Figures of speed over ranks: of settings with other ranks, but as many tokens a step, or as many a rank."""
    speeds, made = [speed for speed in speeds if speed.ranks], []
    for words, tokens_of in (("a step", lambda speed: speed.tokens),
                             ("a rank", lambda speed: speed.tokens / speed.ranks)):
        for (how, tokens), of in grouped_by(speeds, lambda speed: (speed.how, tokens_of(speed))).items():
            if len({speed.ranks for speed in of}) > 1:
                made.append(scaling(f"{how}, {number_text(tokens)} tokens {words}", of))
    return made


def scaling(words, speeds):
    speeds = sorted(speeds, key=lambda speed: speed.ranks)
    least, most = (max((speed for speed in speeds if speed.ranks == end.ranks), key=lambda speed: speed.tokens_per_s)
                   for end in (speeds[0], speeds[-1]))
    each = least.tokens_per_s / least.ranks
    points = [(speed.ranks, speed.tokens_per_s, 0, f"{speed.name}: {number_text(speed.tokens_per_s)} tokens/s")
              for speed in speeds]
    rows = [[speed.name, str(speed.ranks), number_text(speed.tokens_per_s),
             f"{100 * speed.tokens_per_s / (each * speed.ranks):.1f} %"] for speed in speeds]
    heading = (f"From {least.ranks} to {most.ranks} ranks, speed grows to "
               f"{100 * most.tokens_per_s / (each * most.ranks):.1f} % of the ideal ({words})")
    ideal = ("diagonal", [(0, 0), (most.ranks, each * most.ranks)], f"ideal from {least.ranks} ranks")
    return Figure(heading, scatter(points, "ranks", "tokens/s", heading, [ideal], [words]), sources_of(speeds),
                  ["The ideal is the speed of the fastest setting with the fewest ranks, times the ranks."],
                  (("setting", "ranks", "tokens/s", "of the ideal"), rows))


def beside_measured(runs, predictions):
    """The figure of steps that were predicted and run: their plans have the same hash."""
    points, rows = [], []
    hashes = {line.get("plan_hash") for run in runs for line in run.lines}
    predictions = [one for one in predictions if one.plan_hash in hashes]
    steps = [(series, one, run, line) for series, one in enumerate(predictions) for run in runs for line in run.lines
             if line.get("plan_hash") == one.plan_hash]
    for series, one, run, line in steps:
        off = one.step_s / line["step_s"] - 1
        text = f"{one.name} ({one.machine}), {run.name} step {line['step']}"
        points.append((line["step_s"], one.step_s, series, f"{text}: off by {100 * off:+.1f} %"))
        rows.append((abs(off), [one.name, one.machine, f"{run.name} step {line['step']}",
                                *(number_text(of) for of in (one.step_s, line["step_s"])), f"{100 * off:+.1f} %"]))
    if not points:
        return None
    most = max(max(x, y) for x, y, *_ in points)
    off = 100 * max(rows)[0]
    heading = (f"The prediction is off by {off:.1f} %" if len(points) == 1 else
               f"{len(points)} steps were predicted and measured: the farthest is off by {off:.1f} %")
    return Figure(heading, scatter(points, "measured s a step", "predicted s a step", heading,
                                   [("diagonal", [(0, 0), (most, most)], "predicted = measured")],
                                   [one.name for one in predictions]),
                  list(dict.fromkeys(source for _, one, run, _ in steps for source in (one.source(), run.source()))),
                  ["Steps belong together where plan_hash is the same: the same documents and plans.", PREDICTED,
                   "A measured step is one step: it has the noise of the machine, and a first step warms up."],
                  (("prediction", "machine", "step", "predicted s", "measured s", "off by"), [row for _, row in rows]))


def learned(runs):
    series, sources = [], []
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        keys = (("loss", "loss"), ("validation loss", "validation_loss"))
        of_run = [(f"{name}{words}", points) for words, key in keys if (points := run.values(key))]
        series += of_run
        sources += [run.source()] * bool(of_run)
    if not series:
        return None
    points = series[0][1]
    return chart(f"The loss goes from {number_text(points[0][1])} to {number_text(points[-1][1])} nats a target",
                 series, "nats a target", sources, ["A step's loss is the mean over its own targets."], from_zero=False)


def speed_over_steps(runs):
    if not runs:
        return None
    series = [(run.name, [(line["step"], line["tokens"] / line["step_s"]) for line in run.lines]) for run in runs]
    middle = median(line["tokens"] / line["step_s"] for line in runs[0].last_lines())
    return chart(f"{runs[0].name} trains on {number_text(middle)} tokens/s in its median step", series, "tokens/s",
                 [run.source() for run in runs], ["Tokens of the step over its time on rank 0."])


def figures_of_all(runs, predictions, searches):
    """Figures in which inputs stand together."""
    speeds = speeds_of(runs, predictions, searches)
    made = [*memories(runs, [*predictions, *searches]), *speed_figures(speeds), *scalings(speeds),
            beside_measured(runs, predictions), learned(runs), speed_over_steps(runs)]
    return [figure for figure in made if figure]
