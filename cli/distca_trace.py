"""Where each millisecond of traced steps went: `distca trace` goes on as this program (cli/trace.cc).

  python3 distca-trace FILE [--json]

docs/trace.md has the definitions. All times are whole nanoseconds, until they are printed.
"""

import json
import math
import pathlib
import re
import signal
import sys
from collections import Counter, defaultdict

sys.path.append(str(pathlib.Path(__file__).resolve().parent))  # last: nothing there stands in for a module of Python's
from distca_trace_file import fail, read_trace  # noqa: E402

# Of a step.
PARTS = ("compute", "copies", "issues", "gaps", "bubble", "imbalance", "exposed", "tensor", "sums", "other")
LAUNCH = PARTS[2:4]
TENSOR = re.compile(r" (gather_rows for|sum_rows of) |loss rows$")  # operations between ranks that divide layers
PART_OF = {"compute": "compute", "copy": "copies", "launch": "issues", None: "gaps"}  # by kind of the innermost event


def stretches(begin, end, events):
    """Cuts the time from begin to end into (event, begin, end) of the innermost event; None: there is none.

    Events ascend by begin, the outer one first.
    """
    inside, now = [(None, end)], begin
    for event in events:
        at = min(max(event.begin, begin), end)
        while len(inside) > 1 and inside[-1][1] <= at:
            ended, stop = inside.pop()
            yield ended, now, stop
            now = stop
        yield inside[-1][0], now, at
        now = at
        inside.append((event, min(max(event.end, at), inside[-1][1])))
    for ended, stop in reversed(inside):
        yield ended, now, stop
        now = stop


def hidden(flights, waits):
    """How long at least one of the flights was under way and none of the waits."""
    under_way = waiting = last = length = 0
    changes = [change for begin, end in flights for change in ((begin, 1, 0), (end, -1, 0))]
    changes += [change for begin, end in waits for change in ((begin, 0, 1), (end, 0, -1))]
    for time, flight, wait in sorted(changes):
        if under_way and not waiting:
            length += time - last
        under_way, waiting, last = under_way + flight, waiting + wait, time
    return length


class Ticks:
    """What the ranks of a pipeline computed in its ticks."""

    def __init__(self, num_ranks):
        self.num_ranks, self.steps, self.micro_batches = num_ranks, defaultdict(dict), set()

    def add(self, event, stage, begin, end):
        """Counts the time from begin to end of a compute event of a rank of this stage (-1: of none)."""
        tick = self.steps[event.step].setdefault(
            event.tick, {"passes": set(), "stages": set(), "computed": [], "linear": [0] * self.num_ranks})
        tick["computed"].append((begin, end))
        if " core_attention" not in event.operation:
            tick["linear"][event.rank] += end - begin
        if " weight_gradient" in event.operation:  # of an earlier tick, which it fills
            return
        tick["passes"].add(event.operation.partition(" ")[0])
        if event.nano_batch >= 0:
            tick["stages"].add(stage)
            self.micro_batches.add(event.micro_batch)

    def rows(self):
        """A row a tick: its passes, the stages at work, and the sums over all steps of its length and ideal length.

        A tick ends with the last of its operations on any rank, and there begins the next one; but what ranks had
        computed of later ticks by then, in their mean, counts for those. So lengths add up to the time from the first
        operation to the last, and none is shorter than the ranks' mean of what was computed in the tick. Ideal is that
        mean or, if it is longer, the longest linear work of a rank.
        """
        rows = {}
        for ticks in self.steps.values():
            numbers = sorted(ticks)
            begins = {number: min(ticks[number]["computed"])[0] for number in numbers}
            last = now = begins[numbers[0]]
            for place, number in enumerate(numbers):
                tick = ticks[number]
                last = max(last, *(end for _, end in tick["computed"]))
                early = sum(min(end, last) - begin for later in numbers[place + 1:] if begins[later] < last
                            for begin, end in ticks[later]["computed"] if begin < last)
                before, now = now, last - early // self.num_ranks
                computed = sum(end - begin for begin, end in tick["computed"]) // self.num_ranks
                row = rows.setdefault(number, {"tick": number, "passes": [], "stages": [], "length_ns": 0,
                                               "ideal_ns": 0})
                row["passes"] = sorted(tick["passes"].union(row["passes"]), reverse=True)  # forward first
                row["stages"] = sorted(tick["stages"].union(row["stages"]))
                row["length_ns"] += now - before
                row["ideal_ns"] += max(computed, *tick["linear"])
        return [rows[number] for number in sorted(rows)]


class Analysis:
    """Sums over the events of a trace.

    steps: of each rank, its steps in order; totals: of each rank, their sum. Both count the nanoseconds of "step", of its
    parts, of "launch" and "idle", which are several parts, and of "hidden" (at most); "bytes" and "received_bytes"; and
    ("waited_for", rank): imbalance by the rank that came last.
    operations: by kind and pass, without what lies inside them. exchanges: by kind, pass, layer and nano-batch.
    stages: of each rank; -1: none, as on a dedicated server. parts, idle: of PARTS; only a pipeline has a bubble, and only
    ranks that divide layers, num_tensor at a time, have "tensor".
    ticks: Ticks.rows(); without a pipeline none.
    """

    def __init__(self, path, other, events):
        self.other, self.unmatched_waits = other, 0
        self.num_ranks = len(other["ranks"])
        if not self.num_ranks:
            fail(f"{path}: a trace of no rank")
        self.stages = [rank.get("stage", -1) for rank in other["ranks"]]
        self.num_stages = max(0, *self.stages) + 1
        self.num_tensor = max(rank.get("tensor", 0) for rank in other["ranks"]) + 1
        absent = {"bubble": self.num_stages < 2, "tensor": self.num_tensor < 2}
        self.parts = [part for part in PARTS if not absent.get(part)]
        self.idle, self.in_ticks = self.parts[4:], Ticks(self.num_ranks)
        self.operations = defaultdict(lambda: {"count": 0, "flops": 0.0, "rank_ns": [0] * self.num_ranks})
        self.exchanges = defaultdict(lambda: {"exposed_ns": 0, "imbalance_ns": 0, "bytes": 0})
        self.issued, spans, inside = {}, [{} for _ in other["ranks"]], defaultdict(list)
        for event in events:
            if event.kind == "step":
                spans[event.rank][event.step] = event
                continue
            inside[event.rank, event.step].append(event)
            if event.kind == "launch":
                self.issued.setdefault((event.rank, event.step, event.tag), event.end)
        self.numbers, self.steps = sorted(spans[0]), []
        for rank, span in enumerate(spans):
            if not span or sorted(span) != self.numbers:
                fail(f"{path}: rank {rank} has {len(span)} steps, "
                    f"{'not those of rank 0' if rank else 'at least one is needed'}")
            self.steps.append([self.add_step(span[step], inside[rank, step]) for step in self.numbers])
        self.totals = [sum_of(steps) for steps in self.steps]
        self.operations = by_size(self.operations, lambda times: sum(times["rank_ns"]))
        self.exchanges = by_size(self.exchanges, lambda waits: (waits["exposed_ns"], waits["imbalance_ns"]))
        self.ticks = self.in_ticks.rows()

    def add_step(self, span, events):
        step, waits, flights, others = Counter(), [], [], []
        for event in sorted(events, key=lambda event: (event.begin, -event.end)):
            if event.kind == "flight":
                flights.append([min(max(time, span.begin), span.end) for time in (event.begin, event.end)])
                continue
            others.append(event)
            if event.kind == "compute":
                self.operations[event.operation]["count"] += 1
                self.operations[event.operation]["flops"] += event.flops
            elif event.kind == "launch":
                step.update(bytes=event.bytes, received_bytes=event.received_bytes)
                self.exchange(event)["bytes"] += event.bytes
        for event, begin, end in stretches(span.begin, span.end, others):
            kind = event.kind if event else None
            if kind != "wait":
                step[PART_OF[kind]] += end - begin
            elif begin < end:
                waits.append((begin, end))
                self.add_wait(step, event, begin, end)
            if kind == "compute":
                self.operations[event.operation]["rank_ns"][event.rank] += end - begin
                if event.tick >= 0 and self.num_stages > 1:
                    self.in_ticks.add(event, self.stages[event.rank], begin, end)
        step.update(step=span.end - span.begin, launch=sum(step[part] for part in LAUNCH),
                    idle=sum(step[part] for part in self.idle), hidden=hidden(flights, waits))
        return step

    def exchange(self, event):
        return self.exchanges[event.operation, event.layer, event.nano_batch]

    def is_bubble(self, wait):
        """Whether a stage waits in a visit without work of its own, or for what another stage sends."""
        return (self.num_stages > 1 and self.stages[wait.rank] >= 0 and wait.tick >= 0
                and (wait.nano_batch < 0 or " p2p" in wait.operation))

    def part_of(self, wait):
        """Exchanges of core attention belong to a layer or a tick, sums of gradients and collectives to neither."""
        if self.num_tensor > 1 and TENSOR.search(wait.operation):
            return "tensor"
        return "sums" if wait.layer < 0 and wait.tick < 0 else "exposed"

    def add_wait(self, step, wait, begin, end):
        """Imbalance until the last awaited rank had issued its side; from then on, bytes were on their way."""
        if self.is_bubble(wait):
            step["bubble"] += end - begin
            return
        awaited = wait.awaited or wait.to
        if not awaited:
            step["other"] += end - begin
            return
        times = [self.issued.get((peer, wait.step, wait.tag), -1) for peer in awaited]
        self.unmatched_waits += -1 in times
        turn = min(max(*times, begin), end)
        step["imbalance"] += turn - begin
        step["waited_for", awaited[times.index(max(times))]] += turn - begin
        step[self.part_of(wait)] += end - turn
        self.exchange(wait)["imbalance_ns"] += turn - begin
        self.exchange(wait)["exposed_ns"] += end - turn


def sum_of(counters):
    total = Counter()
    for counter in counters:
        total.update(counter)
    return total


def by_size(sums, size):
    """The same, the greatest first; equal ones by name."""
    return dict(sorted(sorted(sums.items()), key=lambda item: size(item[1]), reverse=True))


def shown_ms(value):
    return f"{value:.{2 if value < 10 else 1}f}"


def shown_bytes(count):
    if count < 1024:
        return f"{count} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        count /= 1024
        if count < 1023.95:  # else it would be printed as 1024.0
            break
    return f"{count:.1f} {unit}"


def table(header, rows):
    """The first column to the left, others to the right unless they hold text that is not a number."""
    columns = []
    for column, cells in enumerate(zip(header, *rows)):
        align = str.rjust if column and all(re.match("[-+]?[0-9]", cell) for cell in cells[1:]) else str.ljust
        columns.append([align(cell, max(map(len, cells))) for cell in cells])
    return "".join("  ".join(row).rstrip() + "\n" for row in zip(*columns))


class Report:
    """What is printed of an Analysis: times are milliseconds a step."""

    def __init__(self, analysis):
        self.sums, self.num_steps = analysis, len(analysis.numbers)
        self.all = sum_of(analysis.totals)
        self.pipelined, self.divided = analysis.num_stages > 1, analysis.num_tensor > 1

    def per_step(self, ns, ranks=1):
        return ns * 1e-6 / self.num_steps / ranks

    def ms(self, ns, ranks=1):
        return shown_ms(self.per_step(ns, ranks))

    def lost_ms(self):
        return self.per_step(self.all["step"] - self.all["compute"], self.sums.num_ranks)

    def text(self):
        return "".join([self.head(), self.ranks(), self.lost(), self.steps(), self.slowest(), self.ticks(),
                        self.operations(), self.exchanges(), self.nano_batches()])

    def head(self):
        other, numbers, ranks = self.sums.other, self.sums.numbers, self.sums.num_ranks
        most = max(rank["clock_uncertainty_s"] for rank in other["ranks"])
        text = (f"{ranks} rank{'s' * (ranks > 1)}, step"
                f"{f's {numbers[0]} to {numbers[-1]}' if len(numbers) > 1 else f' {numbers[0]}'}, "
                f"overlap {other['overlap']}, commit {other['commit']}; "
                f"{f'clocks agree to within {most * 1e6:.0f} us' if most > 0 else 'one clock'}\n")
        if self.sums.unmatched_waits:
            text += f"{self.sums.unmatched_waits} waits for messages whose issue is not in the trace count as exposed\n"
        return text

    def rank_row(self, name, total, ranks):
        return [name, *(self.ms(total[key], ranks) for key in ("step", "compute", "copies", "launch", "idle")),
                f"{100 * total['idle'] / max(1, total['step']):.1f} %",
                *(self.ms(total[key], ranks) for key in (*self.sums.idle, "hidden")),
                shown_bytes(total["bytes"] // self.num_steps // ranks)]

    def ranks(self):
        rows = []
        for rank, (total, what) in enumerate(zip(self.sums.totals, self.sums.other["ranks"])):
            place = [f", {key} {what[key]}" for key, shown in (("stage", self.pipelined), ("tensor", self.divided))
                     if shown and key in what]
            rows.append(self.rank_row(f"{rank} {what['role']}{''.join(place)}", total, 1))
        if len(rows) > 1:
            rows.append(self.rank_row("mean", self.all, len(rows)))
        header = ("rank", "step", "compute", "copies", "launch", "idle", "of step", *self.sums.idle, "hidden", "sent")
        bubble = ("  bubble     waiting while this stage has no work of its own, or for what other stages send\n"
                  if self.pipelined else "")
        tensor = ("  tensor     waiting likewise for rows from the ranks that divide the layers with this one\n"
                  if self.divided else "")
        return (f"\nms a step{', mean of the steps' if self.num_steps > 1 else ''}\n{table(header, rows)}"
                f"step = compute + copies + launch + idle; idle = {' + '.join(self.sums.idle)}\n"
                "  launch     issuing messages, and the gaps between operations\n"
                f"{bubble}"
                "  imbalance  waiting for a rank that had not issued its message yet\n"
                "  exposed    waiting for messages that all ranks had issued and that were still under way\n"
                f"{tensor}"
                "  sums       waiting in sums over ranks\n"
                "  other      waiting for a plan, or copying what a checkpoint is written from\n"
                "  hidden     exchanges that were under way while the rank did something else (at most)\n")

    def lost(self):
        step, lost, rows = self.per_step(self.all["step"], self.sums.num_ranks), self.lost_ms(), []
        for part in (*self.sums.idle[:-1], "copies", "issues", "gaps", "other"):
            ms = self.per_step(self.all[part], self.sums.num_ranks)
            bar = "#" * max(ms > 0, math.floor(30 * (ms / lost) + 0.5)) if lost else ""
            rows.append([f"  {'launch: ' * (part in LAUNCH)}{part}", shown_ms(ms),
                         f"{100 * (ms / step if step else 0):.1f} %", bar])
        return (f"\nLost: {shown_ms(lost)} ms of a step's {shown_ms(step)} ({100 * lost / step if step else 0:.1f} %), "
                f"the step but for the ranks' mean compute\n{table(('', 'ms', 'of the step', ''), rows)}")

    def steps(self):
        if self.num_steps < 2:
            return ""
        rows, idle = [], ["idle", *self.sums.idle[:-2]]
        for number, ranks in zip(self.sums.numbers, zip(*self.sums.steps)):
            step = sum_of(ranks)
            rows.append([str(number), *(shown_ms(step[key] * 1e-6 / len(ranks)) for key in ("step", "compute", *idle))])
        return f"\nMean of the ranks\n{table(('step', 'ms', 'mean compute', *idle), rows)}"

    def slowest(self):
        """What the rank that computes longest spends more time on than the mean of those that do it."""
        if self.sums.num_ranks < 2:
            return ""
        compute = [total["compute"] for total in self.sums.totals]
        slowest = compute.index(max(compute))
        more = sorted(((self.per_step(times["rank_ns"][slowest] - sum(times["rank_ns"]) / having(times)), name)
                       for name, times in self.sums.operations.items()), reverse=True)
        reasons = [f"{name} +{shown_ms(ms)}" for ms, name in more[:3] if ms >= 0.05]
        mean = self.all["compute"] / self.sums.num_ranks
        above = 100 * (compute[slowest] / mean - 1) if mean else 0
        lines = ["", f"Rank {slowest} computes longest: {above:+.1f} % of the mean"]
        if reasons:
            lines.append(f"  ms a step more than the mean: {', '.join(reasons)}")
        lines += [f"Rank {rank} came last: others waited {self.ms(ns)} ms a step for it (imbalance)"
                  for rank in range(self.sums.num_ranks) if (ns := self.all["waited_for", rank])]
        return "\n".join(lines) + "\n"

    def ticks(self):
        """A row a tick, and how many there are in each pass."""
        ticks, stages = self.sums.ticks, self.sums.num_stages
        if not ticks:
            return ""
        counts = [f"{sum(name in tick['passes'] for tick in ticks)} {name} ticks" for name in ("forward", "backward")]
        both, micro_batches = sum(len(tick["passes"]) > 1 for tick in ticks), len(self.sums.in_ticks.micro_batches)
        rows = [self.tick_row(str(tick["tick"]), " and ".join(tick["passes"]), str(len(tick["stages"])), tick)
                for tick in ticks]
        working = sum(len(tick["stages"]) for tick in ticks) / len(ticks)
        sums = {key: sum(tick[key] for tick in ticks) for key in ("length_ns", "ideal_ns")}
        rows.append(self.tick_row("all", "", f"{working:.2f}", sums))
        return (f"\n{', '.join(counts)}{f' ({both} are both)' if both else ''} of {stages} stages, "
                f"{micro_batches} micro-batch{'es' * (micro_batches != 1)}\n"
                + table(("tick", "pass", "working stages", "ms", "ideal ms", "ms/ideal"), rows))

    def tick_row(self, name, passes, working, tick):
        length, ideal = tick["length_ns"], tick["ideal_ns"]
        return [name, passes, f"{working} of {self.sums.num_stages}", self.ms(length), self.ms(ideal),
                f"{length / max(1, ideal):.2f}"]

    def operations(self):
        rows = []
        for name, times in self.sums.operations.items():
            ns, ranks = sum(times["rank_ns"]), having(times)
            rows.append([name, str(times["count"] // self.num_steps // ranks), self.ms(ns, ranks),
                         f"{max(times['rank_ns']) * ranks / ns:.2f}" if ns else "",
                         f"{times['flops'] / ns:.1f}" if times["flops"] and ns else ""])
        return "\n" + table(("operation", "times a step", "ms a rank", "max/mean", "GFLOP/s a rank"), rows)

    def wait_row(self, name, waits):
        return [name, self.ms(waits["exposed_ns"]), self.ms(waits["imbalance_ns"]),
                shown_bytes(waits["bytes"] // self.num_steps)]

    def exchanges(self):
        if self.sums.num_ranks < 2:
            return ""
        rows = [self.wait_row(name if layer < 0 else f"{name} layer {layer} of nano-batch {nano_batch}", waits)
                for (name, layer, nano_batch), waits in list(self.sums.exchanges.items())[:8]
                if waits["exposed_ns"] + waits["imbalance_ns"]]
        return "\nWaits, ms a step of all ranks together\n" + table(
            ("most exposed", "exposed ms", "imbalance ms", "sent"), rows)

    def nano_batches(self):
        """Sums over layers and kinds: a nano-batch with a small or empty partner stands out."""
        sums = defaultdict(Counter)
        for (_, _, nano_batch), waits in self.sums.exchanges.items():
            if nano_batch >= 0:
                sums[nano_batch].update(waits)
        rows = [self.wait_row(f"nano-batch {nano_batch}", waits) for nano_batch, waits in sorted(sums.items())]
        return "\n" + table(("exchanges of", "exposed ms", "imbalance ms", "sent"), rows) if len(rows) > 1 else ""

    def parts(self, step):
        parts = {f"{part}_ns": step[part] for part in self.sums.parts}
        return {"step_ns": step["step"], "idle_ns": step["idle"], "parts": parts, "hidden_ns": step["hidden"],
                "bytes": step["bytes"], "received_bytes": step["received_bytes"],
                "waited_for_ns": [step["waited_for", rank] for rank in range(self.sums.num_ranks)]}

    def json(self):
        sums = self.sums
        keys = ("role", "stage", "tensor", "clock_offset_s", "clock_uncertainty_s")
        ranks = [{**{key: rank[key] for key in keys if key in rank},
                  "steps": [{"step": number, **self.parts(step)} for number, step in zip(sums.numbers, steps)],
                  "total": self.parts(total)} for rank, steps, total in zip(sums.other["ranks"], sums.steps, sums.totals)]
        return {**{key: sums.other[key] for key in ("version", "commit", "overlap")}, "ranks": ranks,
                "unmatched_waits": sums.unmatched_waits, "lost_ms": self.lost_ms(),
                "operations": [{"name": name, **times} for name, times in sums.operations.items()],
                "exchanges": [{"name": name, "layer": layer, "nano_batch": nano_batch, **waits}
                              for (name, layer, nano_batch), waits in sums.exchanges.items()],
                **({"stages": sums.num_stages, "ticks": sums.ticks} if self.pipelined else {}),
                **({"tensor": sums.num_tensor} if self.divided else {})}


def having(times):
    """Ranks that do the operation at all: servers have no linear operations."""
    return max(1, sum(ns > 0 for ns in times["rank_ns"]))


def main():
    path, *options = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        report = Report(Analysis(path, *read_trace(path)))
        text = report.text() if not options else json.dumps(report.json(), sort_keys=True, separators=(",", ":")) + "\n"
        with open(1, "w", encoding="utf-8", closefd=False) as out:
            out.write(text)
    except MemoryError:
        fail("out of memory", 1)
    except OSError as error:
        fail(f"stdout: {error.strerror}", 1)


if __name__ == "__main__":
    main()
