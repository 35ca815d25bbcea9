"""Where a prediction and a run differ: `distca trace PREDICTED --against MEASURED`, its tables and its JSON."""

from collections import defaultdict, namedtuple

from distca_trace_file import fail
from distca_trace_report import shown_ms, steps_of, table

MOST_ROWS = 16  # of a table
SHARE = "of measured"
PLACE = ("role", "stage", "tensor")  # keys of a rank that both traces must have alike


class Difference(namedtuple("Difference", "name predicted measured")):
    """Of the times of two traces that have this name, in ms a step."""

    @property
    def off(self):
        return round(self.predicted - self.measured, 9) + 0.0  # to the picosecond, never -0.0

    @property
    def share(self):
        """Of what was measured; None if that was nothing."""
        return self.off / self.measured if self.measured else None

    def cells(self):
        share = "" if self.share is None else f"{100 * self.share:+.1f} %"
        return [shown_ms(self.predicted), shown_ms(self.measured), signed_ms(self.off), share.rjust(len(SHARE))]

    def json(self):
        return {"predicted_ms": self.predicted, "measured_ms": self.measured, "off_ms": self.off, "off": self.share}


def signed_ms(value):
    return f"{'-' if value < 0 else '+'}{shown_ms(abs(value))}"


def words_of(part, operation):
    """The name of what a rank spent time on."""
    if part == "gaps":
        return "between operations"
    return operation if part == "compute" else f"{operation}: {part}"


class Against:
    """What is printed of a predicted Analysis and a measured one: ms a step, each the mean of the steps that it has.

    The ranks are those of the predicted trace, which may have some of a run alone.
    """

    def __init__(self, path, predicted, against, measured):
        self.paths, self.sums, self.num_ranks = (path, against), (predicted, measured), predicted.num_ranks
        places = places_in(path, predicted, against, measured)
        self.spent = (ms_of_ranks(predicted, range(self.num_ranks)), ms_of_ranks(measured, places))
        self.step = self.differences(lambda part, operation, rank: "step")[0]
        self.parts = self.differences(lambda part, operation, rank: part)
        self.operations = self.differences(lambda part, operation, rank: (part, operation))
        self.ranks = self.differences(lambda part, operation, rank: rank, of_ranks=1)
        most_last = reversed(self.differences(lambda part, operation, rank: (rank, part, operation), of_ranks=1))
        self.of_rank = {one.name[0]: one for one in most_last}  # by place: what differs most

    def differences(self, name_of, of_ranks=None):
        """The times of each name, the mean of so many ranks (None: of all); what differs most first."""
        sums = defaultdict(lambda: [0.0, 0.0])
        for side, spent in enumerate(self.spent):
            for (part, operation), ranks in spent.items():
                for rank, ms in enumerate(ranks):
                    sums[name_of(part, operation, rank)][side] += ms / (of_ranks or self.num_ranks)
        all_of_them = (Difference(name, *both) for name, both in sums.items())
        return sorted(all_of_them, key=lambda one: (-abs(one.off), one.name))

    def text(self):
        return "".join([self.head(), self.by_part(), self.by_operation(), self.by_rank()])

    def head(self):
        lines = []
        for word, path, sums in zip(("predicted", "measured"), self.paths, self.sums):
            machine = f"predicted for machine {sums.predicted['machine']}, " if sums.predicted else ""
            lines.append(f"{word:10}{path}: {machine}{steps_of(sums.numbers)}, overlap {sums.other['overlap']}, commit "
                         f"{sums.other['commit']}\n")
            if sums.unmatched_waits:
                lines.append(f"{'':10}{sums.unmatched_waits} waits for messages whose issue is not in it count as exposed"
                             "\n")
        if self.sums[0].numbers != self.sums[1].numbers:
            lines.append("No step is in both: steps have other documents, and take other times by that, too\n")
        if self.num_ranks < self.sums[1].num_ranks:
            lines.append(f"Compared are the {self.num_ranks} ranks of {self.sums[1].num_ranks} that the first one has\n")
        predicted, measured, off, share = self.step.cells()
        first = self.operations[0]
        lines.append(f"\nA step is predicted at {predicted} ms and took {measured} ms: off by {off} ms"
                     f"{f' ({share.strip()})' if share.strip() else ''}\n")
        lines.append(f"Most of all differs {words_of(*first.name)}: {signed_ms(first.off)} ms\n")
        return "".join(lines)

    def by_part(self):
        rows = [[one.name, *one.cells()] for one in (*self.parts, self.step)]
        return "\nms a step, mean of the ranks; what differs most first\n" + self.table("part", rows)

    def by_operation(self):
        shown, left = self.operations[:MOST_ROWS], self.operations[MOST_ROWS:]
        rows = [[words_of(*one.name), *one.cells()] for one in shown]
        if left:
            others = Difference(f"{len(left)} others", *(sum(one[side] for one in left) for side in (1, 2)))
            rows.append([others.name, *others.cells()])
        return "\n" + self.table("operation", rows)

    def by_rank(self):
        rows = []
        for one in self.ranks[:MOST_ROWS]:
            what, most = self.sums[0].other["ranks"][one.name], self.of_rank[one.name]
            stage = f", stage {what['stage']}" if "stage" in what else ""
            rows.append([f"{self.sums[0].rank_numbers[one.name]} {what['role']}{stage}", *one.cells(),
                         f"{words_of(*most.name[1:])} {signed_ms(most.off)}"])
        left = len(self.ranks) - len(rows)
        return ("\n" + self.table("rank", rows, "differs most in")
                + (f"{left} other rank{'s' * (left > 1)} differ{'s' * (left == 1)} less\n" if left else ""))

    @staticmethod
    def table(name, rows, *more):
        return table((name, "predicted", "measured", "off by", SHARE, *more), rows)

    def json(self):
        numbers = self.sums[0].rank_numbers
        traces = [{"file": str(path), "steps": sums.numbers, "predicted": sums.predicted,
                   "unmatched_waits": sums.unmatched_waits, **{key: sums.other[key] for key in ("overlap", "commit")}}
                  for path, sums in zip(self.paths, self.sums)]
        return {"traces": traces, "step": self.step.json(),
                "parts": [{"part": one.name, **one.json()} for one in self.parts],
                "operations": [{"part": one.name[0], "operation": one.name[1], **one.json()}
                               for one in self.operations],
                "ranks": [{"rank": numbers[one.name], **one.json()} for one in self.ranks]}


def ms_of_ranks(sums, places):
    """By part and operation: ms a step of each of the ranks at these places."""
    return {key: [of_ranks[place] * 1e-6 / len(sums.numbers) for place in places]
            for key, of_ranks in sums.spent.items()}


def places_in(path, predicted, against, measured):
    """The places of the predicted ranks in the measured trace, which must be of as many ranks, in the same stages."""
    counts = [sums.predicted["num_ranks"] if sums.predicted else sums.num_ranks for sums in (predicted, measured)]
    if counts[0] != counts[1]:
        fail(f"{against}: a trace of {counts[1]} rank{'s' * (counts[1] > 1)}, {path} is one of {counts[0]}")
    places = {number: place for place, number in enumerate(measured.rank_numbers)}
    for number, rank in zip(predicted.rank_numbers, predicted.other["ranks"]):
        if number not in places:
            fail(f"{against}: it has no rank {number}, which {path} has")
        there = measured.other["ranks"][places[number]]
        if [rank.get(key) for key in PLACE] != [there.get(key) for key in PLACE]:
            fail(f"{against}: rank {number} is {place_words(there)}, in {path} {place_words(rank)}")
    return [places[number] for number in predicted.rank_numbers]


def place_words(rank):
    return ", ".join([f"a {rank['role']}", *(f"{key} {rank[key]}" for key in PLACE[1:] if key in rank)])
