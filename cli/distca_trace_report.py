"""The tables of `distca trace`, and its JSON."""

import math
import re
from collections import Counter, defaultdict

from distca_trace_sums import LAUNCH, sum_of

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shown_ms(value):
    return f"{value:.{2 if value < 10 else 1}f}"


def shown_bytes(count):
    at = 0
    while count >= 1023.95 and at < len(BYTE_UNITS) - 1:  # else it would be printed as 1024.0
        count, at = count / 1024, at + 1
    return f"{count:.{min(at, 1)}f} {BYTE_UNITS[at]}"


def steps_of(numbers):
    first, last = numbers[0], numbers[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


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
        other, ranks, predicted = self.sums.other, self.sums.num_ranks, self.sums.predicted
        most = max(rank["clock_uncertainty_s"] for rank in other["ranks"])
        clocks = f"clocks agree to within {most * 1e6:.0f} us" if most > 0 else "one clock"
        if predicted:
            clocks = f"predicted for machine {predicted['machine']}"
        run = predicted["num_ranks"] if predicted else ranks
        text = (f"{f'{ranks} of ' if ranks < run else ''}{run} rank{'s' * (run > 1)}, {steps_of(self.sums.numbers)}, "
                f"overlap {other['overlap']}, commit {other['commit']}; {clocks}\n")
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
            rows.append(self.rank_row(f"{self.sums.rank_numbers[rank]} {what['role']}{''.join(place)}", total, 1))
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
                "  other      waiting for a plan or, if predicted, for the end of the step; copies for a checkpoint\n"
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
        numbers = self.sums.rank_numbers
        lines = ["", f"Rank {numbers[slowest]} computes longest: {above:+.1f} % of the mean"]
        if reasons:
            lines.append(f"  ms a step more than the mean: {', '.join(reasons)}")
        lines += [f"Rank {numbers[rank]} came last: others waited {self.ms(ns)} ms a step for it (imbalance)"
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
        keys = ("role", "stage", "tensor", "rank", "clock_offset_s", "clock_uncertainty_s")
        ranks = [{**{key: rank[key] for key in keys if key in rank},
                  "steps": [{"step": number, **self.parts(step)} for number, step in zip(sums.numbers, steps)],
                  "total": self.parts(total)} for rank, steps, total in zip(sums.other["ranks"], sums.steps, sums.totals)]
        return {**{key: sums.other[key] for key in ("version", "commit", "overlap")}, "ranks": ranks,
                "unmatched_waits": sums.unmatched_waits, "lost_ms": self.lost_ms(),
                "operations": [{"name": name, **times} for name, times in sums.operations.items()],
                "exchanges": [{"name": name, "layer": layer, "nano_batch": nano_batch, **waits}
                              for (name, layer, nano_batch), waits in sums.exchanges.items()],
                **({"predicted": sums.predicted} if sums.predicted else {}),
                **({"stages": sums.num_stages, "ticks": sums.ticks} if self.pipelined else {}),
                **({"tensor": sums.num_tensor} if self.divided else {})}


def having(times):
    """Ranks that do the operation at all: servers have no linear operations."""
    return max(1, sum(ns > 0 for ns in times["rank_ns"]))
