"""What bench/report.py's tables are made of: intervals, verdicts beside bars.toml, tables."""

import collections
import dataclasses
import functools
import itertools
import pathlib
import statistics
import tomllib

BARS = tomllib.loads((pathlib.Path(__file__).parent / "bars.toml").read_text())
LEAST_ROUNDS = BARS["least_rounds"]
RESAMPLES = 2000
TAIL = 0.025
WORD = (1 << 64) - 1


# --- statistics --------------------------------------------------------------------------------------------------------

def splitmix64(state):
    """The next state and the number that it gives."""
    state = (state + 0x9E3779B97F4A7C15) & WORD
    z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return state, z ^ z >> 31


def random_words(seed, stream=0):
    """The numbers of distca/base/random.h: the same values have the same interval as ever."""
    def rotated(word, by):
        return (word << by | word >> 64 - by) & WORD

    mixed, s = seed ^ splitmix64(stream)[1], []
    for _ in range(4):
        mixed, word = splitmix64(mixed)
        s.append(word)
    while True:
        yield rotated(s[1] * 5 & WORD, 7) * 9 & WORD
        third, fourth = s[2] ^ s[0], s[3] ^ s[1]
        s = [s[0] ^ fourth, s[1] ^ third, third ^ s[1] << 17 & WORD, rotated(fourth, 45)]


@functools.cache
def resamples(count):
    """Which of `count` values each resample draws, with replacement."""
    drawn = (word % count for word in random_words(count) if word >= (1 << 64) % count)
    return [[next(drawn) for _ in range(count)] for _ in range(RESAMPLES)]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A median over rounds and the interval that holds it with 95 %."""
    median: float
    low: float
    high: float

    def inverse(self):
        return Estimate(1 / self.median, 1 / self.high, 1 / self.low)

    def text(self, digits=3, to="-", times=1, sign=""):
        """The interval."""
        return f"{times * self.low:{sign}.{digits}f}{to}{times * self.high:{sign}.{digits}f}"


def estimate(values):
    """By bootstrap; the same values give the same interval."""
    if not values:
        raise ValueError("no rounds")
    medians = sorted(statistics.median(values[i] for i in drawn) for drawn in resamples(len(values)))
    low, high = (medians[int(share * (RESAMPLES - 1))] for share in (TAIL, 1 - TAIL))
    return Estimate(statistics.median(values), low, high)


def quotient(left, right):
    """Round by round."""
    return [a / b for a, b in zip(left, right, strict=True)]


def ratio(left, right):
    """Of the ratios within a round."""
    return estimate(quotient(left, right))


def difference(left, right):
    return [a - b for a, b in zip(left, right, strict=True)]


# --- verdicts ----------------------------------------------------------------------------------------------------------

def holds(fact, wanted):
    return wanted[0] <= fact <= wanted[1] if isinstance(wanted, list) else fact == wanted


def bar_of(bench, figure, facts):
    """The entry of bars.toml for a figure with these facts; an empty one where there is none."""
    for bar in BARS.get(bench, {}).get(figure, []):
        if all(holds(facts[name], wanted) for name, wanted in bar.get("where", {}).items()):
            return bar
    return {}


@dataclasses.dataclass
class Figure:
    """A measured figure beside its bar. `control`: the figure against itself, measured again in the same rounds, so that
    it holds the noise of everything that the figure is made of. A ratio is 1 against itself and should be at least its
    bar; a share of which another is subtracted is 0 and should be at most its bar."""
    reached: Estimate
    control: Estimate
    rounds: int
    bar: float | None = None  # None: shown, not judged
    is_difference: bool = False

    def verdict(self):
        """Not decidable from few rounds, where the bar lies in the figure's own interval, or where the control's reaches
        further from what it should be than the figure is from its bar."""
        if self.bar is None:
            return "-"
        median, itself = self.reached.median, 0 if self.is_difference else 1
        margin = abs(median - self.bar if self.is_difference else median / self.bar - 1)
        noise = max(abs(self.control.low - itself), abs(self.control.high - itself))
        if self.rounds < LEAST_ROUNDS or self.reached.low <= self.bar <= self.reached.high or noise > margin:
            return "not decidable here"
        return "reached" if (median <= self.bar if self.is_difference else median >= self.bar) else "missed"


def figure_of(values, again, bar=None):
    """`again`: the same figure's values, of turns of their own in the same rounds."""
    return Figure(estimate(values), ratio(values, again), len(values), bar)


class Report:
    """Text for people, and how many bars are reached."""

    def __init__(self, bench, markdown=False):
        self.bench = bench
        self.markdown = markdown
        self.parts = []
        self.section = ""  # what of the benchmark is judged now
        self.bars = []  # rows of what was judged: section, name, reached, its interval, bar, A/A, verdict
        self.verdicts = collections.Counter()

    def say(self, text=""):
        self.parts.append(text)

    def bar(self, figure, **facts):
        """As Figure wants it."""
        bar = bar_of(self.bench, figure, facts)
        return 1 / bar["most_times"] if "most_times" in bar else bar.get("at_least", bar.get("at_most"))

    def judge(self, figure, name):
        """The figure's verdict, counted."""
        verdict = figure.verdict()
        if verdict != "-":
            self.count(verdict, name, figure.reached.median, figure.reached.text(), figure.bar, figure.control.text())
        return verdict

    def count(self, verdict, name, reached, interval, bar, control):
        self.verdicts[verdict] += 1
        self.bars.append(f"{self.bench}: {self.section}|{name}|{reached:.3f}|{interval}|{bar:.3g}|{control}|{verdict}")

    def judge_exact(self, figure, reached, **facts):
        """Of what no noise moves: the bar's entry with its verdict; None where there is no bar."""
        bar = bar_of(self.bench, figure, facts)
        if not bar:
            return None
        verdict = "reached" if reached <= bar["at_most"] * (1 + 1e-9) else "missed"  # a bound met exactly is met
        self.count(verdict, ", ".join((figure.replace("_", " "), *map(str, facts.values()))), reached, "exact", bar["at_most"], "none")
        return {**bar, "figure": figure.replace("_", " "), "reached": reached, "verdict": verdict}

    def table(self, header, rows):
        """Cells between bars; the first column to the left, the others to the right if all are numbers. Nothing where there
        are no rows; after a blank line where the header begins with one."""
        rows = list(rows)
        if not rows:
            return
        if header.startswith("\n"):
            self.say()
        cells = [[cell.strip() for cell in row.split("|")] for row in (header, *rows)]
        columns = list(zip(*cells, strict=True))
        widths = [max(map(len, column)) for column in columns]
        right = [i > 0 and all(cell.lstrip("+-")[:1].isdigit() for cell in column[1:])
                 for i, column in enumerate(columns)]
        lines = [[cell.rjust(width) if to_right else cell.ljust(width)
                  for cell, width, to_right in zip(row, widths, right)] for row in cells]
        if self.markdown:
            lines.insert(1, ["-" * (width - 1) + ":" if to_right else "-" * width
                             for width, to_right in zip([max(width, 2) for width in widths], right)])
            self.say("\n".join(f"| {' | '.join(line)} |" for line in lines))
        else:
            self.say("\n".join("  ".join(line).rstrip() for line in lines))

    def text(self):
        count = self.verdicts
        tally = [f"\n{count['reached']} of {count.total()} bars reached, {count['missed']} missed, "
                 f"{count['not decidable here']} not decidable here"] if count.total() else []
        return "\n".join(self.parts + tally)


# --- text of lines -------------------------------------------------------------------------------------------------------

def of(lines, kind):
    return [line for line in lines if line["line"] == kind]


def groups(lines, kind):
    """Each line of that kind with those that follow it."""
    begins = [i for i, line in enumerate(lines) if line["line"] == kind] + [len(lines)]
    return [lines[begin:end] for begin, end in itertools.pairwise(begins)]


def model_text(head):
    return ("{num_hidden_layers} layers, hidden {hidden_size}, intermediate {intermediate_size}, heads {num_attention_heads}:"
            "{num_key_value_heads}, head_dim {head_dim}, {type}".format_map(head["model"] | head))


def ms(seconds):
    return f"{1e3 * seconds:.1f}"
