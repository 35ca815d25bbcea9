"""The sums over the events of a trace that distca_trace.py prints: where the time of each rank's steps went.

docs/trace.md has the definitions. All times are whole nanoseconds.
"""

import re
from collections import Counter, defaultdict

from distca_trace_file import alike_ranks, fail

# The parts of a step.
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
    spent: by part, and kind and pass, of each rank; all of it together is the steps.
    rank_numbers: of the run. A predicted trace (predicted: by what, else None) may have some of its ranks alone.
    stages: of each rank; -1: none, as on a dedicated server. parts, idle: of PARTS; only a pipeline has a bubble, and only
    ranks that divide layers, num_tensor at a time, have "tensor".
    ticks: Ticks.rows(); without a pipeline none.
    """

    def __init__(self, path, other, events):
        self.other, self.unmatched_waits = other, 0
        self.num_ranks = len(other["ranks"])
        if not self.num_ranks:
            fail(f"{path}: a trace of no rank")
        self.rank_numbers = [rank.get("rank", place) for place, rank in enumerate(other["ranks"])]
        self.predicted = other.get("predicted")
        self.stages = [rank.get("stage", -1) for rank in other["ranks"]]
        self.num_stages = max(0, *self.stages) + 1
        self.num_tensor = max(*(rank.get("tensor", 0) + 1 for rank in other["ranks"]), alike_ranks(other))
        absent = {"bubble": self.num_stages < 2, "tensor": self.num_tensor < 2}
        self.parts = [part for part in PARTS if not absent.get(part)]
        self.idle, self.in_ticks = self.parts[4:], Ticks(self.num_ranks)
        self.operations = defaultdict(lambda: {"count": 0, "flops": 0.0, "rank_ns": [0] * self.num_ranks})
        self.exchanges = defaultdict(lambda: {"exposed_ns": 0, "imbalance_ns": 0, "bytes": 0})
        self.spent = defaultdict(lambda: [0] * self.num_ranks)
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
                fail(f"{path}: rank {self.rank_numbers[rank]} has {len(span)} steps, "
                     f"{f'not those of rank {self.rank_numbers[0]}' if rank else 'at least one is needed'}")
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
                self.spend(step, PART_OF[kind], span.rank, event, end - begin)
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

    def spend(self, step, part, rank, event, time):
        """Counts the time of a part of the step, within the event or, if that is None, between events."""
        step[part] += time
        self.spent[part, event.operation if event else ""][rank] += time

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
        awaited = wait.awaited or wait.to
        if self.is_bubble(wait) or not awaited:
            self.spend(step, "bubble" if self.is_bubble(wait) else "other", wait.rank, wait, end - begin)
            return
        times = [self.issued.get((peer, wait.step, wait.tag), -1) for peer in awaited]
        self.unmatched_waits += -1 in times
        turn = min(max(*times, begin), end)
        self.spend(step, "imbalance", wait.rank, wait, turn - begin)
        step["waited_for", awaited[times.index(max(times))]] += turn - begin
        self.spend(step, self.part_of(wait), wait.rank, wait, end - turn)
        self.exchange(wait)["imbalance_ns"] += turn - begin
        self.exchange(wait)["exposed_ns"] += end - turn


def sum_of(counters):
    """One Counter, which grows in place: `sum` would copy it for each rank."""
    total = Counter()
    for counter in counters:
        total.update(counter)
    return total


def by_size(sums, size):
    """The same, the greatest first; equal ones by name."""
    return dict(sorted(sorted(sums.items()), key=lambda item: size(item[1]), reverse=True))
