#!/usr/bin/env python3
"""Draws the pictures of docs/pictures with matplotlib, from traces, plans and a recorded step of a pipeline.

  draw_pictures.py keep TRACE --layer 2 --caption TEXT > SMALL_TRACE
  draw_pictures.py layer SMALL_WITHOUT SMALL_WITH --pass forward > SVG
  draw_pictures.py load BEFORE AFTER --caption TEXT > SVG
  draw_pictures.py pipeline TICKS > SVG

`keep` reads a trace of `distca train --trace` (docs/trace.md) and writes one layer of one step of it, with whatever
runs at the same time: of all traced steps the one in which the layer took the median time. The result is a trace, too,
which says the layer and the caption. `layer` draws that layer, for two nano-batches, on one time scale: what `keep`
wrote of a trace without ping-pong, and of one with it. `load` draws the load of every server from two plans of one
nano-batch (`distca plan --json`). `pipeline` draws docs/pictures/pipeline.json. scripts/pictures.sh makes the other inputs
and calls all four. Whatever draws needs matplotlib (pip install matplotlib).
"""

import argparse
import io
import json
import re
import sys
import textwrap
from collections import namedtuple

BREAK = 2  # ms between two parts of a panel
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
ARMS = [("1F1B, single nano-batches", "1F1B of single nano-batches, attention at home"),
        ("aligned, attention even", "aligned ticks, attention even (the paper)"),
        ("aligned, whole even", "aligned ticks, linear work and attention even (DistCA)")]
PARTS = [("linear_s", "#56b4e9", "linear work"), ("own_s", "#e69f00", "core attention of the rank's own rows"),
         ("served_s", "#cc79a7", "core attention for other stages")]

# Times in milliseconds. kind: as in the trace's "cat".
Event = namedtuple("Event", "rank kind direction layer operation nano_batch begin end")
# A stretch of time that is drawn: from begin to end. What is measured of it ends at `until`.
Window = namedtuple("Window", "begin end until words")


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


def figure(rows, height, caption):
    """matplotlib's pyplot, and [row] the axes of a new figure, 8 inches wide, with a caption below them."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("drawing needs matplotlib: pip install matplotlib")
    matplotlib.use("svg")
    from matplotlib import pyplot
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "distca", "font.family": "sans-serif", "font.size": 8,
                            "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
                            "axes.titlelocation": "left", "axes.titleweight": "bold", "hatch.linewidth": 0.6})
    made, axes = pyplot.subplots(rows, 1, figsize=(8, height), squeeze=False, layout="constrained", sharex=True)
    made.supxlabel("\n".join(textwrap.wrap(caption, 140)), fontsize=7, color="#59636e", x=0.01, ha="left")
    return made, [row[0] for row in axes]


def svg_of(made):
    text = io.StringIO()
    made.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def draw_event(axes, event, left, right, row, is_ours):
    """One event in its worker's three lines: computes, and receives for nano-batch 0 and 1; other layers are faint."""
    style = {"waiting": {"facecolor": "none", "edgecolor": "#8c959f", "hatch": "////", "linewidth": 0},
             "copying": {"facecolor": "#59636e"}}.get({"wait": "waiting", "compute": "", "flight": ""}.get(event.kind, "copying"))
    if not style:
        style = {"facecolor": OPERATIONS[event.operation][0], "edgecolor": "white", "linewidth": 0,
                 "hatch": "////" if event.nano_batch and is_ours else None}
    at, height = (row, 0.9) if event.kind != "flight" else (row + 1 + event.nano_batch * 0.5, 0.4)
    axes.broken_barh([(left, right - left)], (at, height), alpha=1 if is_ours or event.kind == "wait" else 0.35, **style)
    if is_ours and event.kind in ("compute", "flight") and right - left > 1:
        axes.text((left + right) / 2, at + height / 2, str(event.nano_batch), ha="center", va="center", fontsize=6)


def draw_panel(axes, title, events, windows, key):
    """Of each worker a line for what it computes, and two for the messages that it receives."""
    axes.set_title(f"{title}: {elapsed(windows):.0f} ms")
    ranks = sorted({event.rank for event in events})
    left = 0
    for window in windows:
        right = left + window.until - window.begin
        axes.annotate("", (left, -0.4), (right, -0.4), arrowprops={"arrowstyle": "|-|, widthA=.2, widthB=.2"})
        axes.text((left + right) / 2, -0.6, f"{window.words}: {window.until - window.begin:.1f} ms", ha="center", fontsize=7)
        for event in sorted(events, key=lambda event: event.begin):
            begin, end = max(event.begin, window.begin), min(event.end, window.end)
            if end > begin:
                draw_event(axes, event, left + begin - window.begin, left + end - window.begin, 3 * ranks.index(event.rank),
                           (event.direction, event.layer) == key)
        left += window.end - window.begin + BREAK
        if window != windows[-1]:  # time passes in between
            axes.axvline(left - BREAK / 2, color="#59636e", linestyle=":", linewidth=1)
    axes.set_yticks([3 * i + offset for i in range(len(ranks)) for offset in (0.45, 1.45)],
                    [f"worker {rank} {what}" for rank in ranks for what in ("computes", "receives")])
    axes.tick_params(left=False)
    axes.set_ylim(3 * len(ranks) - 0.8, -1.3)


def layer_svg(without, with_ping_pong, direction):
    panels = []
    for title, path in (("One operation after another", without), ("Ping-pong", with_ping_pong)):
        trace = read_json(path)
        if "kept" not in trace["otherData"]:
            sys.exit(f"{path}: a whole trace: let `keep` choose a layer")
        events, kept = events_of(trace["traceEvents"], path), trace["otherData"]["kept"]
        panels.append((title, events, windows_of(events, direction, kept["layer"])))
    made, axes = figure(2, 6, kept["caption"])
    for one, (title, events, windows) in zip(axes, panels):
        draw_panel(one, title, events, windows, (direction, kept["layer"]))
    axes[-1].set_xlabel("ms; a dotted line leaves time out")
    from matplotlib.patches import Patch
    used = {event.operation for _, events, _ in panels for event in events}
    entries = [Patch(color=colour, label=f"{name}: {what.format(**TRAVELS[direction])}")
               for name, (colour, what) in OPERATIONS.items() if name in used]
    entries += [Patch(facecolor="none", edgecolor="#8c959f", hatch="////", label="waits for an exchange"),
                Patch(color="#59636e", label="packs, issues and unpacks messages"),
                Patch(color="#e69f00", alpha=0.35, label="faint: the layers before and after"),
                Patch(facecolor="#e69f00", edgecolor="white", hatch="////", label="0, 1: the nano-batch; 1 is striped")]
    made.legend(handles=entries, loc="outside upper left", ncols=2, frameon=False)
    return svg_of(made)


def shares(plan):
    """What each server would carry if all were loaded in proportion to their capacities."""
    total = sum(server["pairs"] for server in plan["load"])
    capacity = plan["cluster"]["capacity"]
    return [total * one / sum(capacity) for one in capacity]


def max_over_mean(plan):
    return max(server["pairs"] / share for server, share in zip(plan["load"], shares(plan)) if share)


def load_svg(before, after, caption):
    plans = [read_json(path) for path in (before, after)]
    if plans[0]["document_lengths"] != plans[1]["document_lengths"]:
        sys.exit(f"{before} and {after} are not plans of the same documents")
    made, (axes,) = figure(1, 3.6, caption)
    servers = range(len(plans[0]["load"]))
    for offset, name, colour, plan, words in ((-0.2, "before", "#e69f00", plans[0], "every query is computed where it lives"),
                                              (0.2, "after", "#56b4e9", plans[1], "tasks are moved between servers")):
        axes.bar([server + offset for server in servers], [server["pairs"] / 1e9 for server in plan["load"]], 0.38, color=colour,
                 label=f"{name}: {words}; the busiest server has {max_over_mean(plan):.3f} times its share")
    axes.hlines([share / 1e9 for share in shares(plans[1])], [server - 0.45 for server in servers], [server + 0.45 for server in servers],
                color="#1f2328", linestyle="--", linewidth=1, label="each server's share")
    axes.set_title("Core attention by server, before and after balancing")
    axes.set_xticks(list(servers), [f"server {server}" for server in servers])
    axes.set_ylabel("billion (query, key) pairs of one layer")
    axes.grid(axis="y", alpha=0.4)
    axes.set_axisbelow(True)
    (share, *bars), labels = axes.get_legend_handles_labels()
    made.legend([*bars, share], [*labels[1:], labels[0]], loc="outside upper left", frameon=False)
    return svg_of(made)


def boxes_of(ticks):
    """(part, begin, seconds) of a rank's work, without overlap: a tick begins where the work of the one before ends, if that
    is later than its own beginning."""
    done = 0
    for tick in sorted(ticks, key=lambda tick: tick["begin_s"]):
        at = max(done, tick["begin_s"])
        for part, *_ in PARTS:
            if tick[part] > 0:
                yield part, at, tick[part]
                at += tick[part]
        done = at


def pipeline_svg(path):
    kept = read_json(path)
    made, axes = figure(3, 5.2, "A training step of four stages and eight micro-batches, in which core attention is 40 % of all "
                        f"work. Recorded {kept['date']} on an {kept['machine']}, commit {kept['commit']}, with "
                        "operations that slept stated prices. A box is a tick of a rank, in which time is summed by kind; lines "
                        "show where ticks begin. One step is not a measurement.")
    for one, (arm, title) in zip(axes, ARMS):
        ticks = [t for t in kept["ticks"] if t["arm"] == arm]
        ranks = sorted({t["rank"] for t in ticks})
        boxes = {rank: list(boxes_of(t for t in ticks if t["rank"] == rank)) for rank in ranks}
        end = max(begin + length for found in boxes.values() for _, begin, length in found)
        work = sum(length for found in boxes.values() for _, _, length in found)
        one.set_title(f"{title}: {end:.2f} s, idle {100 * (1 - work / len(ranks) / end):.0f} %")
        for rank in ranks:
            one.broken_barh([(0, end)], (rank, 0.85), facecolor="#eef0f2")
            for part, colour, words in PARTS:
                one.broken_barh([(begin, length) for name, begin, length in boxes[rank] if name == part], (rank, 0.85),
                                facecolor=colour, label=words if rank == ranks[0] and one is axes[0] else None)
        for tick in ticks:  # with common ticks, the lines of all stages make one
            first = tick["begin_s"] if arm == ARMS[0][0] else min(t["begin_s"] for t in ticks if t["tick"] == tick["tick"])
            one.vlines(first, tick["rank"] - 0.05, tick["rank"] + 0.95, color="#59636e", linewidth=0.5)
        one.set_yticks([rank + 0.4 for rank in ranks], [f"stage {rank}" for rank in ranks])
        one.set_ylim(len(ranks), -0.1)
        one.tick_params(left=False)
    axes[-1].set_xlabel("s")
    made.legend(loc="outside upper left", ncols=3, frameon=False)
    return svg_of(made)


def main():
    options = {"--layer": {"type": int, "required": True}, "--caption": {"default": ""}, "--pass": {"choices": NEXT, "required": True}}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for make, name, num_files, *names in ((keep, "keep", 1, "--layer", "--caption"), (layer_svg, "layer", 2, "--pass"),
                                          (load_svg, "load", 2, "--caption"), (pipeline_svg, "pipeline", 1)):
        verb = verbs.add_parser(name)
        verb.add_argument("files", nargs=num_files, metavar="FILE")
        for option in names:
            verb.add_argument(option, **options[option])
        verb.set_defaults(make=make)
    asked = vars(parser.parse_args())
    make, paths = asked.pop("make"), asked.pop("files")
    sys.stdout.write(make(*paths, *asked.values()))


if __name__ == "__main__":
    main()
