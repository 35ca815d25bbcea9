#!/usr/bin/env python3
"""Draws the pictures of docs/pictures, as SVG, from traces and plans.

  draw_pictures.py keep TRACE --layer 2 --caption TEXT > SMALL_TRACE
  draw_pictures.py layer SMALL_WITHOUT SMALL_WITH --pass forward > SVG
  draw_pictures.py load BEFORE AFTER --caption TEXT > SVG

`keep` reads a trace of `distca train --trace` (docs/trace.md) and writes one layer of one step of it, with whatever
runs at the same time: of all traced steps the one in which the layer took the median time. The result is a trace, too,
which says the layer and the caption. `layer` draws that layer, for two nano-batches, on one time
scale: what `keep` wrote of a trace without ping-pong, and of one with it. `load` draws the load of every server from
two plans of one nano-batch (`distca plan --json`). scripts/pictures.sh makes the inputs and calls all three.
"""

import argparse
import json
import math
import re
import sys
import textwrap
from collections import namedtuple
from xml.sax.saxutils import escape

WIDTH, MARGIN = 800, 16
LEFT = 140  # where time begins: row labels stand before it
LANE, ROW, BREAK = 11, 22, 14  # pixels: half a row; a row; between two parts of a panel
WORKER = ROW + 3 + 2 * (LANE + 1) + 8  # from one worker to the next: a row and two lanes
OPERATIONS = {  # name: (colour, what it does); what travels is that of forward or of backward
    "pre_attention": ("#56b4e9", "norm, projection to Q, K, V"),
    "core_attention": ("#e69f00", "the tasks of this worker"),
    "post_attention": ("#2fb58a", "output projection and MLP"),
    "dispatch": ("#e07b5a", "{queries} to the servers"),
    "redispatch": ("#b8a13a", "Q, K, V to the servers again"),
    "combine": ("#cc79a7", "{results} come home"),
}
TRAVELS = {"forward": {"queries": "Q, K, V", "results": "O, LSE"},
           "backward": {"queries": "dO, LSE, delta", "results": "dQ, dK, dV"}}
FIRST = {"forward": "pre_attention", "backward": "post_attention"}  # operation of a layer in each pass
NEXT = {"forward": 1, "backward": -1}  # to the layer that follows
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.card { fill: #ffffff; stroke: #d0d7de }
.title { font-size: 14px; font-weight: 600 }
.note { font-size: 11px; fill: #59636e }
.in-box { font-size: 10px; fill: #000000 }
.line { stroke: #59636e; fill: none }
.busy { fill: #59636e }
.before { fill: #e69f00 }
.after { fill: #56b4e9 }
.idle { fill: url(#waiting) }
.second { fill: url(#stripes) }
.stripe { stroke: #8c959f }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .card { fill: #0d1117; stroke: #3d444d }
  .note { fill: #9198a1 }
  .in-box { fill: #000000 }
  .line { stroke: #9198a1 }
  .busy { fill: #b7bdc8 }
}
"""
PATTERNS = """<defs>
<pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<line class="stripe" x1="0" y1="0" x2="0" y2="6" stroke-width="1.6"/></pattern>
<pattern id="stripes" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<line x1="0" y1="0" x2="0" y2="5" stroke="#ffffff" stroke-opacity=".55" stroke-width="2.4"/></pattern>
</defs>"""

# Times in milliseconds. kind: as in the trace's "cat".
Event = namedtuple("Event", "rank kind direction layer operation nano_batch begin end")
# A stretch of time that is drawn: from begin to end. What is measured of it ends at `until`.
Window = namedtuple("Window", "begin end until words")


class Picture:
    """SVG text that grows downwards: `y` is where the next thing begins."""

    def __init__(self):
        self.y = MARGIN
        self.parts = []

    def rectangle(self, css, x, y, width, height, extra=""):
        self.parts.append(f'<rect class="{css}" x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.4):.2f}" '
                          f'height="{height:.2f}"{extra}/>')

    def path(self, shape, extra=""):
        self.parts.append(f'<path class="line" d="{shape}"{extra}/>')

    def line(self, x1, y1, x2, y2, extra=""):
        self.path(f"M{x1:.2f} {y1:.2f}L{x2:.2f} {y2:.2f}", extra)

    def text(self, words, x, y, css="", anchor="start"):
        self.parts.append(f'<text class="{css}" x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape(words)}</text>')

    def paragraph(self, words):
        for line in textwrap.wrap(words, 128):
            self.y += 15
            self.text(line, MARGIN, self.y, "note")

    def svg(self, title):
        height = self.y + MARGIN
        operations = "".join(f".{name} {{ fill: {colour} }}\n" for name, (colour, _) in OPERATIONS.items())
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>", f"<style>{STYLE}{operations}</style>", PATTERNS,
            f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="6"/>',
            *self.parts, "</svg>"]) + "\n"


def event_of(line):
    """An Event of a line of a trace; None where it belongs to no layer of a nano-batch.

    Nor are messages drawn that are only sent: nobody waits for them until their buffer is written again.
    """
    name = re.match(r"(forward|backward) layer (\d+) (\w+).* of nano-batch (\d+)$", line["name"])
    if line["ph"] != "X" or not name or (line["cat"] == "flight" and not line["args"].get("received_bytes")):
        return None
    begin, length = line["ts"] / 1e3, line["dur"] / 1e3
    return Event(line["pid"], line["cat"], name[1], int(name[2]), name[3], int(name[4]), begin, begin + length)


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def events_of(lines, path):
    events = [event for line in lines if (event := event_of(line))]
    unknown = {event.operation for event in events} - set(OPERATIONS)
    if unknown or not events:
        sys.exit(f"{path}: operations that this script does not know: {', '.join(sorted(unknown)) or 'none at all'}")
    return events


def begin_of(events, direction, layer, nano_batch):
    """When the first worker begins the layer."""
    begins = [event.begin for event in events if event.kind == "compute" and event.operation == FIRST[direction] and
              (event.direction, event.layer, event.nano_batch) == (direction, layer, nano_batch)]
    if not begins:
        sys.exit(f"the trace has no {direction} layer {layer} of nano-batch {nano_batch}")
    return min(begins)


def windows_of(events, direction, layer):
    """What is drawn of the layer: one Window where the two nano-batches are played in turn, else one for each."""
    begin, after = ([begin_of(events, direction, at, nano) for nano in (0, 1)]
                    for at in (layer, layer + NEXT[direction]))
    if after[0] > begin[1]:  # in turn: from its begin to that of the next layer a nano-batch sees a layer of each
        end = max(event.end for event in events if event.kind == "compute" and
                  (event.direction, event.layer) == (direction, layer))
        return [Window(begin[0], max(end, after[0]), after[0], "a layer of both nano-batches")]
    return [Window(begin[nano], after[nano], after[nano], f"nano-batch {nano}") for nano in (0, 1)]


def elapsed(windows):
    return sum(window.until - window.begin for window in windows)


def keep(path, layer, caption):
    """The trace of one layer of the median step, as text, an event a line."""
    trace, steps = read_json(path), {}
    for line in trace["traceEvents"]:
        if line["ph"] == "X":
            steps.setdefault(line["args"]["step"], []).append(line)
    windows = {}
    for step, lines in steps.items():
        events = events_of(lines, path)
        windows[step] = sum((windows_of(events, direction, layer) for direction in NEXT), [])
    step = sorted(steps, key=lambda step: elapsed(windows[step]))[(len(steps) - 1) // 2]
    kept = []
    for line in steps[step]:
        event = event_of(line)
        is_next_begin = event and event.kind == "compute" and event.operation == FIRST[event.direction] and \
            event.layer == layer + NEXT[event.direction]  # where the measured time ends
        if is_next_begin or event and any(event.begin < window.end and event.end > window.begin
                                          for window in windows[step]):
            arguments = {key: line["args"][key] for key in ("step", "received_bytes") if key in line["args"]}
            kept.append(json.dumps(line | {"args": arguments}, sort_keys=True))
    other = {key: trace["otherData"][key] for key in ("program", "version", "commit")} | {
        "kept": {"layer": layer, "step": step, "of_steps": len(steps), "caption": caption}}
    return '{"displayTimeUnit": "ms",\n"otherData": %s,\n"traceEvents": [\n%s\n]}\n' % (
        json.dumps(other), ",\n".join(kept))


def draw_event(picture, event, x, width, top, is_ours):
    """One event in its row; those of other layers faint."""
    faint = "" if is_ours else ' opacity=".25"'
    if event.kind not in ("compute", "flight"):
        picture.rectangle("idle" if event.kind == "wait" else "busy", x, top, width, ROW,
                          faint if event.kind != "wait" else "")
        return
    height = ROW if event.kind == "compute" else LANE
    if event.kind == "flight":
        top += ROW + 3 + event.nano_batch * (LANE + 1)
    picture.rectangle(event.operation, x, top, width, height, faint)
    if event.nano_batch == 1:
        picture.rectangle("second", x, top, width, height, faint)
    if is_ours and width > 9:
        picture.text(str(event.nano_batch), x + width / 2, top + height / 2 + 3.6, "in-box", "middle")


def draw_panel(picture, title, events, windows, scale, key):
    """Of each worker a row for what it computes and one for the messages that it receives, a lane a nano-batch."""
    picture.y += 14
    picture.text(f"{title}: {elapsed(windows):.0f} ms", MARGIN, picture.y, "title")
    brackets = picture.y + 20
    first = brackets + 12
    tops = {rank: first + index * WORKER for index, rank in enumerate(sorted({event.rank for event in events}))}
    picture.y = first + len(tops) * WORKER
    for rank, top in tops.items():
        picture.text(f"worker {rank}", MARGIN, top + 10)
        picture.text("computes", LEFT - 8, top + 15, "note", "end")
        picture.text("receives", LEFT - 8, top + ROW + 18, "note", "end")
    left = LEFT
    for window in windows:
        right = left + (window.until - window.begin) * scale
        picture.path(f"M{left:.2f} {brackets + 8}V{brackets + 3}H{right:.2f}V{brackets + 8}")  # over what is measured
        picture.text(f"{window.words}: {window.until - window.begin:.1f} ms", (left + right) / 2, brackets - 2, "note",
                     "middle")
        for event in sorted(events, key=lambda event: event.begin):
            begin, end = max(event.begin, window.begin), min(event.end, window.end)
            if end > begin:
                draw_event(picture, event, left + (begin - window.begin) * scale, (end - begin) * scale,
                           tops[event.rank], (event.direction, event.layer) == key)
        left += (window.end - window.begin) * scale + BREAK
        if window != windows[-1]:  # time passes in between
            picture.line(left - BREAK / 2, first - 4, left - BREAK / 2, picture.y - 6, ' stroke-dasharray="2 3"')


def draw_scale(picture, scale):
    """A bar of a round length of time."""
    length = next(ms for power in range(-1, 6) for ms in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
                  if ms * scale >= 60)
    picture.line(LEFT, picture.y + 4, LEFT + length * scale, picture.y + 4, ' stroke-width="2"')
    picture.text(f"{length:g} ms", LEFT + length * scale + 6, picture.y + 8, "note")
    picture.y += 16


def draw_legend(picture, used, direction):
    entries = [(name, f"{name}: {what.format(**TRAVELS[direction])}", "") for name, (_, what) in OPERATIONS.items()
               if name in used]
    entries += [("idle", "waits for an exchange", ""), ("busy", "packs, issues and unpacks messages", ""),
                ("core_attention", "faint: the layers before and after", ' opacity=".25"'),
                ("core_attention", "0, 1: the number of the nano-batch; 1 is striped", "")]
    for index, (css, label, extra) in enumerate(entries):
        x, y = MARGIN + index % 2 * 384, picture.y + index // 2 * 18
        picture.rectangle(css, x, y, 16, 12, extra)
        picture.text(label, x + 24, y + 10)
    picture.rectangle("second", x, y, 16, 12)  # of the last one
    picture.y += (len(entries) + 1) // 2 * 18 + 2


def layer_svg(without, with_ping_pong, direction):
    picture, panels = Picture(), []
    for title, path in (("One operation after another", without), ("Ping-pong", with_ping_pong)):
        trace = read_json(path)
        if "kept" not in trace["otherData"]:
            sys.exit(f"{path}: a whole trace: let `keep` choose a layer")
        events, kept = events_of(trace["traceEvents"], path), trace["otherData"]["kept"]
        panels.append((title, events, windows_of(events, direction, kept["layer"])))
    scale = min((WIDTH - LEFT - MARGIN - BREAK * (len(windows) - 1)) /
                sum(window.end - window.begin for window in windows) for _, _, windows in panels)
    for title, events, windows in panels:
        draw_panel(picture, title, events, windows, scale, (direction, kept["layer"]))
    draw_scale(picture, scale)
    draw_legend(picture, {event.operation for _, events, _ in panels for event in events}, direction)
    picture.paragraph(kept["caption"])
    return picture.svg(f"A {direction} layer of two nano-batches, without and with ping-pong")


def shares(plan):
    """What each server would carry if all were loaded in proportion to their capacities."""
    total = sum(server["pairs"] for server in plan["load"])
    capacity = plan["cluster"]["capacity"]
    return [total * one / sum(capacity) for one in capacity]


def max_over_mean(plan):
    return max(server["pairs"] / share for server, share in zip(plan["load"], shares(plan)) if share)


def draw_bars(picture, plans, top, bottom):
    """Two bars a server, a gridline for each round number, and the load that each server should have."""
    figures = [[server["pairs"] for server in plan["load"]] for plan in plans]
    most = max(map(max, figures))
    power = 3 * int(math.log10(most) // 3)
    unit = {0: "", 3: "thousand ", 6: "million ", 9: "billion "}.get(power, f"10^{power} ")
    picture.text(f"{unit}(query, key) pairs of one layer", MARGIN, top - 12, "note")
    left, right = 64, WIDTH - MARGIN - 44
    scale = (bottom - top) / most
    step = next(s * 10.0**p for p in range(-2, 3) for s in (1, 2, 5) if most / 10**power / (s * 10.0**p) <= 5)
    for index in range(int(most / 10**power / step) + 1):
        y = bottom - index * step * 10**power * scale
        picture.line(left, y, right, y, ' stroke-opacity=".35"')
        picture.text(f"{index * step:g}", left - 8, y + 4, "note", "end")
    group = (right - left) / len(figures[0])
    for server, share in enumerate(shares(plans[1])):
        x = left + server * group
        for index, css in enumerate(("before", "after")):
            height = figures[index][server] * scale
            picture.rectangle(css, x + group * (0.14 + 0.36 * index), bottom - height, group * 0.34, height)
        y = bottom - share * scale
        picture.line(x, y, x + group, y, ' stroke-width="1.5" stroke-dasharray="6 3"')
        if group >= 24:
            picture.text(str(server), x + group / 2, bottom + 16, "note", "middle")
    equal = len(set(plans[1]["cluster"]["capacity"])) == 1
    picture.text("mean" if equal else "share", right + 6, bottom - shares(plans[1])[-1] * scale + 4, "note")
    picture.text("server", left - 8, bottom + 16, "note", "end")


def load_svg(before, after, caption):
    plans = [read_json(path) for path in (before, after)]
    if plans[0]["document_lengths"] != plans[1]["document_lengths"]:
        sys.exit(f"{before} and {after} are not plans of the same documents")
    picture = Picture()
    picture.text("Core attention by server, before and after balancing", MARGIN, picture.y + 14, "title")
    for css, plan, words in (("before", plans[0], "every query is computed where it lives"),
                             ("after", plans[1], "tasks are moved between servers")):
        picture.y += 20
        picture.rectangle(css, MARGIN, picture.y + 6, 16, 12)
        picture.text(f"{css}: {words}; the busiest server has {max_over_mean(plan):.3f} times the mean", MARGIN + 24,
                     picture.y + 16)
    draw_bars(picture, plans, picture.y + 56, picture.y + 266)
    picture.y += 290
    picture.paragraph(caption)
    return picture.svg("Load of every server before and after balancing")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("keep")
    verb.add_argument("trace")
    verb.add_argument("--layer", type=int, required=True)
    verb.add_argument("--caption", default="")
    verb.set_defaults(make=lambda asked: keep(asked.trace, asked.layer, asked.caption))
    verb = verbs.add_parser("layer")
    verb.add_argument("traces", nargs=2, metavar="TRACE")
    verb.add_argument("--pass", dest="direction", choices=NEXT, required=True)
    verb.set_defaults(make=lambda asked: layer_svg(*asked.traces, asked.direction))
    verb = verbs.add_parser("load")
    verb.add_argument("plans", nargs=2, metavar="PLAN")
    verb.add_argument("--caption", default="")
    verb.set_defaults(make=lambda asked: load_svg(*asked.plans, asked.caption))
    asked = parser.parse_args()
    sys.stdout.write(asked.make(asked))


if __name__ == "__main__":
    main()
