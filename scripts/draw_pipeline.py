#!/usr/bin/env python3
"""Draws docs/pictures/pipeline.svg from what `build/release/bench/pipeline trace` wrote.

  draw_pipeline.py keep TRACE.jsonl > docs/pictures/pipeline.json
  draw_pipeline.py draw docs/pictures/pipeline.json > docs/pictures/pipeline.svg

`keep` leaves out what the picture does not show, and rounds to tenths of a millisecond. A row is a rank; rows of a way to
play stand together, all on one time scale. A box is a tick of a rank: its parts are as wide as the time of each kind of work.
"""

import argparse
import json
import sys
from xml.sax.saxutils import escape

ARMS = [("1F1B, single nano-batches", "1F1B of single nano-batches, attention at home"),
        ("aligned, attention even", "aligned ticks, attention even (the paper)"),
        ("aligned, whole even", "aligned ticks, linear work and attention even (DistCA)")]
PARTS = [("linear_s", "linear", "linear work"), ("own_s", "own", "core attention of the rank's own rows"),
         ("served_s", "served", "core attention for other stages")]
WIDTH, LEFT, RIGHT, TOP = 900, 62, 14, 60
ROW, GAP, TITLE, FOOT = 20, 3, 26, 16
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.card { fill: #ffffff; stroke: #d0d7de }
.title { font-weight: 600 }
.note { font-size: 11px; fill: #59636e }
.idle { fill: #eef0f2 }
.linear { fill: #56b4e9 }
.own { fill: #e69f00 }
.served { fill: #cc79a7 }
.tick { stroke: #59636e; stroke-opacity: .55; stroke-width: .6 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .card { fill: #0d1117; stroke: #3d444d }
  .note { fill: #9198a1 }
  .idle { fill: #21262d }
  .tick { stroke: #e6edf3 }
}
"""


def keep(lines):
    """One object: what is drawn of a trace's lines."""
    head, *ticks = [json.loads(line) for line in lines]
    shown = [arm for arm, _ in ARMS]
    kept = [{"arm": t["arm"], "rank": t["rank"], "tick": t["tick"],
             **{key: round(t[key], 4) for key in ("begin_s", "end_s", "linear_s", "own_s", "served_s")}}
            for t in ticks if t["line"] == "tick" and t["arm"] in shown]
    return {"machine": head["machine"], "date": head["date"][:10], "commit": head["commit"], "ticks": kept}


def rows_of(ticks, arm):
    """[rank] its ticks, in their order."""
    ranks = sorted({t["rank"] for t in ticks if t["arm"] == arm})
    return [sorted((t for t in ticks if t["arm"] == arm and t["rank"] == rank), key=lambda t: t["begin_s"]) for rank in ranks]


def boxes(row):
    """(class, begin, end) of a rank's work, without overlap: a tick begins where the work of the one before ends, if that is
    later than its own beginning."""
    done = 0
    for tick in row:
        at = max(done, tick["begin_s"])
        for key, name, _ in PARTS:
            if tick[key] > 0:
                yield name, at, at + tick[key]
                at += tick[key]
        done = at


def draw(kept):
    ticks = kept["ticks"]
    last = max(stop for arm, _ in ARMS for row in rows_of(ticks, arm) for _, _, stop in boxes(row))
    scale = (WIDTH - LEFT - RIGHT) / last
    parts, y = [], TOP
    for arm, title in ARMS:
        rows = rows_of(ticks, arm)
        end = max(stop for row in rows for _, _, stop in boxes(row))
        work = sum(e - b for row in rows for _, b, e in boxes(row))
        idle = 1 - work / len(rows) / end
        parts.append(f'<text class="title" x="{LEFT}" y="{y + 14}">{escape(title)}</text>')
        parts.append(f'<text class="note" x="{WIDTH - RIGHT}" y="{y + 14}" text-anchor="end">{end:.2f} s, idle {100 * idle:.0f} %</text>')
        y += TITLE
        top = y
        for rank, row in enumerate(rows):
            parts.append(f'<text class="note" x="{LEFT - 6}" y="{y + 14}" text-anchor="end">stage {rank}</text>')
            parts.append(f'<rect class="idle" x="{LEFT}" y="{y}" width="{end * scale:.1f}" height="{ROW}"/>')
            for name, begin, stop in boxes(row):
                parts.append(f'<rect class="{name}" x="{LEFT + begin * scale:.1f}" y="{y}" width="{(stop - begin) * scale:.2f}" '
                             f'height="{ROW}"/>')
            if arm == ARMS[0][0]:  # no common ticks: each stage's own
                parts += [f'<line class="tick" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + ROW}"/>'
                          for x in (LEFT + t["begin_s"] * scale for t in row)]
            y += ROW + GAP
        if arm != ARMS[0][0]:
            for tick in sorted({t["tick"] for row in rows for t in row}):
                x = LEFT + min(t["begin_s"] for row in rows for t in row if t["tick"] == tick) * scale
                parts.append(f'<line class="tick" x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{y}"/>')
        y += FOOT
    legend, x = [], LEFT
    for _, name, words in (*PARTS, ("", "idle", "idle")):
        legend.append(f'<rect class="{name}" x="{x}" y="34" width="12" height="12"/><text x="{x + 17}" y="44">{escape(words)}</text>')
        x += 40 + 6.6 * len(words)
    head = ('<text class="title" x="16" y="22">A training step of four stages and eight micro-batches, core attention 40 % of all '
            'work</text>')
    for note in (f"Recorded {kept['date']} on an {kept['machine']}, commit {kept['commit']}, by build/release/bench/pipeline trace: "
                 "operations sleep stated prices.",
                 "A box is a tick of a rank, in which time is summed by kind. Lines: where ticks begin. One step is not a measurement."):
        parts.append(f'<text class="note" x="16" y="{y + 4}">{escape(note)}</text>')
        y += 16
    height = y + 2
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
            f'aria-label="What four stages of a pipeline do when, in three ways to play a step">\n<style>{STYLE}</style>\n'
            f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
            + "\n".join([head, *legend, *parts]) + "\n</svg>")


def main(words):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["keep", "draw"])
    options.add_argument("file", help="what the one before wrote")
    asked = options.parse_args(words)
    with open(asked.file) as file:
        if asked.what == "draw":
            print(draw(json.load(file)))
        else:
            kept = keep(file)
            ticks = ",\n".join(json.dumps(tick) for tick in kept.pop("ticks"))
            print(json.dumps(kept)[:-1] + ', "ticks": [\n' + ticks + "\n]}")


if __name__ == "__main__":
    main(sys.argv[1:])
