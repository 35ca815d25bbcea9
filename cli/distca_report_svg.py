"""Drawings of `distca report` as SVG that is as wide as the page: places are percents, and texts keep their size.

Colours are classes of distca_report.css, so a drawing follows the page's theme.
"""

import html
import math

from distca_trace_report import shown_bytes

SERIES = 8  # classes s0 to s7
PLOT_HEIGHT = 200
BAR_ROW = 40  # the height of a bar and its name
MOST_BARS = 32
MOST_CELLS = 128  # ranks on a side of a matrix
LEVELS = 8  # shades of a matrix, classes m1 to m8


def escaped(text):
    """The text as HTML. Control characters are shown as spaces, and bytes that are no UTF-8 as question marks."""
    text = "".join(char if char >= " " and char != "\x7f" else " " for char in str(text))
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def number_text(value):
    """Four digits, and all of a large number."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short_text(value):
    """For axes: "15 M" in place of 15,000,000."""
    for power, letter in ((9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10 * 10**power or power > 3 and abs(value) >= 10**power:
            return f"{value / 10**power:.4g} {letter}"
    return number_text(value)


def shortened(text, most):
    """The text, or its two ends."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def percent(share):
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


class Scale:
    """Round numbers of the unit from at most the least value to at least the most."""

    def __init__(self, least, most, wanted=5, unit=1):
        if not most > least:
            least, most = least - (abs(least) / 10 or 1), most + (abs(most) / 10 or 1)
        least, most = least / unit, most / unit
        raw = (most - least) / wanted
        power = 10 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
        first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
        self.ticks = [step * index * unit for index in range(first, last + 1)]
        self.least, self.most = self.ticks[0], self.ticks[-1]

    def share(self, value):
        return (value - self.least) / (self.most - self.least)


class Axes:
    """The frame of a plot: a rule at each round number of y, a number below each of x, and what both count."""

    def __init__(self, xs, ys, x_label, y_label, from_zero=True):
        low = min(ys)
        self.x, self.y = Scale(min(xs), max(xs)), Scale(min(0, low) if from_zero else low, max(ys))
        self.labels = x_label, y_label

    def place(self, x, y):
        return self.x.share(x), 1 - self.y.share(y)

    def svg(self, inside, title):
        parts = [f'<svg class="plot" role="img" height="{PLOT_HEIGHT + 60}" aria-label="{escaped(title)}">',
                 f'<text class="axis" x="-46" y="12">{escaped(self.labels[1])}</text>',
                 f'<svg y="24" height="{PLOT_HEIGHT}" overflow="visible">']
        for tick in self.y.ticks:
            at = percent(1 - self.y.share(tick))
            parts.append(f'<line class="rule" x1="0" x2="100%" y1="{at}" y2="{at}"/>'
                         f'<text class="tick end" x="-6" y="{at}" dy="4">{short_text(tick)}</text>')
        parts += [inside, "</svg>"]
        for index, tick in enumerate(self.x.ticks):
            anchor = "start" if index == 0 else "end" if index == len(self.x.ticks) - 1 else "middle"
            parts.append(f'<text class="tick {anchor}" x="{percent(self.x.share(tick))}" y="{PLOT_HEIGHT + 42}">'
                         f"{short_text(tick)}</text>")
        parts.append(f'<text class="axis end" x="100%" y="{PLOT_HEIGHT + 57}">{escaped(self.labels[0])}</text></svg>')
        return "".join(parts)


def legend(entries):
    """entries: (class, what it means)"""
    items = "".join(f'<li><span class="swatch {kind}"></span>{escaped(text)}</li>' for kind, text in entries)
    return f'<ul class="legend">{items}</ul>'


def dot(x, y, kind, radius, text):
    return (f'<circle class="dot {kind}" cx="{percent(x)}" cy="{percent(y)}" r="{radius}">'
            f"<title>{escaped(text)}</title></circle>")


def line_chart(series, x_label, y_label, title, from_zero=True):
    """series: (name, [(x, y)]), each in its own colour and dashes. A series of one point is a dot."""
    series = [(name, points) for name, points in series if points]
    axes = Axes([x for _, points in series for x, _ in points], [y for _, points in series for _, y in points],
                x_label, y_label, from_zero)
    lines, dots = [], []
    for index, (name, points) in enumerate(series):
        places = [axes.place(x, y) for x, y in points]
        path = " ".join(f"{1000 * x:.1f},{1000 * y:.1f}" for x, y in places)
        kind = f"s{index % SERIES}"
        lines.append(f'<polyline class="line {kind}" points="{path}"><title>{escaped(name)}</title></polyline>')
        if len(points) <= 30:
            dots += [dot(x, y, kind, 3, f"{name}: {number_text(point[0])}, {number_text(point[1])}")
                     for (x, y), point in zip(places, points)]
    inside = (f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" overflow="visible">{"".join(lines)}</svg>'
              + "".join(dots))
    return legend((f"line s{index % SERIES}", name) for index, (name, _) in enumerate(series)) + axes.svg(inside, title)


def scatter(points, x_label, y_label, title, lines, names):
    """points: (x, y, series, text); lines: (class, [(x, y)], text); names: of the series. Both axes begin at 0."""
    ends = [end for _, line, _ in lines for end in line]
    axes = Axes([0, *(x for x, *_ in points), *(x for x, _ in ends)],
                [*(y for _, y, *_ in points), *(y for _, y in ends)], x_label, y_label)
    inside = []
    for kind, line, _ in lines:
        (x1, y1), (x2, y2) = (axes.place(*end) for end in line)
        inside.append(f'<line class="{kind}" x1="{percent(x1)}" y1="{percent(y1)}" x2="{percent(x2)}" '
                      f'y2="{percent(y2)}"/>')
    inside += [dot(*axes.place(x, y), f"s{series % SERIES}", 5, text) for x, y, series, text in points]
    keys = [(f"s{index % SERIES}", name) for index, name in enumerate(names)]
    return legend([*keys, *((kind, text) for kind, _, text in lines)]) + axes.svg("".join(inside), title)


def evenly(items, most):
    """At most so many of the items, from the first to the last."""
    if len(items) <= most or most < 2:
        return list(items)[:most]
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def bars(rows, unit, title, text_of=number_text):
    """rows: (name, [(class, value, what)], [(class of a mark, value, what)], text): values side by side, marks across.

    Each row is a line of text above a bar, so that it is read on a narrow page. At most MOST_BARS are drawn.
    """
    shown = evenly(rows, MOST_BARS)
    longest = max([sum(value for _, value, _ in parts) for _, parts, _, _ in shown]
                  + [value for _, _, marks, _ in shown for _, value, _ in marks], default=0) or 1
    drawn, bottom, of_bytes = [], len(shown) * BAR_ROW, text_of is shown_bytes
    for tick in Scale(0, longest, 4, 1024 ** max(0, math.floor(math.log(longest, 1024))) if of_bytes else 1).ticks:
        if tick > longest:
            continue
        where, anchor = percent(tick / longest), "start" if tick == 0 else "end" if tick > 0.93 * longest else "middle"
        drawn.append(f'<line class="rule" x1="{where}" x2="{where}" y1="16" y2="{bottom}"/>'
                     f'<text class="tick {anchor}" x="{where}" y="{bottom + 14}">'
                     f"{escaped(shown_bytes(tick) if of_bytes else short_text(tick))}</text>")
    drawn += [bar(index * BAR_ROW, row, longest, text_of) for index, row in enumerate(shown)]
    note = f"<p>{len(shown)} of {len(rows)} rows are drawn.</p>" if len(shown) < len(rows) else ""
    return (f'<svg class="bars" role="img" height="{bottom + 34}" aria-label="{escaped(title)}">{"".join(drawn)}'
            f'<text class="axis end" x="100%" y="{bottom + 30}">{escaped(unit)}</text></svg>{note}')


def bar(top, row, longest, text_of):
    name, parts, marks, text = row
    drawn, at = [f'<text x="0" y="{top + 13}">{escaped(shortened(name, 36))}</text>'
                 f'<text class="value" x="100%" y="{top + 13}">{escaped(text)}</text>'], 0
    for kind, value, what in parts:
        drawn.append(f'<rect class="{kind}" x="{percent(at / longest)}" y="{top + 18}" '
                     f'width="{percent(value / longest)}" height="14"><title>{escaped(name)}: {escaped(what)} '
                     f"{escaped(text_of(value))}</title></rect>")
        at += value
    for kind, value, what in marks:
        where = percent(value / longest)
        drawn.append(f'<line class="{kind}" x1="{where}" x2="{where}" y1="{top + 17}" y2="{top + 36}"><title>'
                     f"{escaped(what)}: {escaped(text_of(value))}</title></line>")
    return "".join(drawn)


def grouped(matrix, groups):
    """The sums of a square matrix over neighbours, `groups` on a side."""
    size, sums = len(matrix), [[0] * groups for _ in range(groups)]
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            sums[row * groups // size][column * groups // size] += value
    return sums


def heat_map(matrix, names, title):
    """A square matrix of bytes as shaded cells, in a box that scrolls; at most MOST_CELLS on a side, else sums."""
    if len(matrix) > MOST_CELLS:
        matrix = grouped(matrix, MOST_CELLS)
        names = [str(index) for index in range(MOST_CELLS)]
    size = len(matrix)
    wide, high = (70, 30) if size <= 12 else (max(5, 560 // size),) * 2
    left, top, most = 44, 34, max(map(max, matrix)) or 1
    parts = [f'<svg class="matrix" role="img" width="{left + size * wide + 2}" height="{top + size * high + 2}" '
             f'aria-label="{escaped(title)}"><text class="axis" x="0" y="12">from (down), to (across)</text>']
    shades = [[] for _ in range(LEVELS)]
    for row, values in enumerate(matrix):
        for column, value in enumerate(values):
            x, y = left + column * wide, top + row * high
            level = math.ceil(LEVELS * value / most)
            if level:
                shades[level - 1].append(f"M{x} {y}h{wide - 1}v{high - 1}h{1 - wide}z")
            if size <= 12 and value:
                parts.append(f'<text class="cell{" on" * (level > 4)}" x="{x + wide / 2:g}" y="{y + high / 2 + 4:g}">'
                             f"{shown_bytes(value)}</text>")
    parts[1:1] = [f'<path class="m{level}" d="{"".join(cells)}"/>' for level, cells in enumerate(shades, 1) if cells]
    every = max(1, math.ceil(22 / wide)) if size > 12 else 1
    for index in range(0, size, every):
        name = escaped(names[index])
        parts.append(f'<text class="tick" x="{left + (index + 0.5) * wide:g}" y="{top - 6}">{name}</text>'
                     f'<text class="tick end" x="{left - 6}" y="{top + (index + 0.5) * high + 4:g}">{name}</text>')
    return f'<div class="box">{"".join(parts)}</svg></div>'
