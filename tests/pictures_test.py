#!/usr/bin/env python3
"""What scripts/draw_pictures.py draws: small traces and plans of known figures, and docs/pictures from its inputs."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from run_command import ROOT

SVG = "{http://www.w3.org/2000/svg}"
LAYER = ("pre_attention", "dispatch", "core_attention", "combine", "post_attention")
MS = {"pre_attention": 10, "dispatch": 20, "core_attention": 30, "combine": 15, "post_attention": 25}


def draw(*arguments):
    """The exit code, what was printed, and the error line."""
    ran = subprocess.run([sys.executable, ROOT / "scripts/draw_pictures.py", *map(str, arguments)], capture_output=True,
                         text=True)
    return ran.returncode, ran.stdout, ran.stderr


def line(kind, name, nano_batch, begin_ms, length_ms, step, rank=0):
    return {"ph": "X", "name": f"{name} of nano-batch {nano_batch}", "cat": kind, "pid": rank, "tid": 0,
            "ts": begin_ms * 1000, "dur": length_ms * 1000,
            "args": {"step": step, "received_bytes": 100 * (kind in ("wait", "flight"))}}


def one_after_another(step, stretch=1):
    """A step of three layers as a blocking schedule plays it: exchanges are waited for."""
    lines, now = [], 0
    for nano_batch in (0, 1):
        for direction, layers in (("forward", (0, 1, 2)), ("backward", (2, 1, 0))):
            for layer in layers:
                for operation in LAYER if direction == "forward" else LAYER[::-1]:
                    length = MS[operation] * stretch
                    kinds = ("wait", "flight") if operation in ("dispatch", "combine") else ("compute",)
                    lines += [line(kind, f"{direction} layer {layer} {operation}", nano_batch, now, length, step, rank)
                              for kind in kinds for rank in (0, 1)]
                    now += length
    return lines


def in_turn(step):
    """The same in turn: computes without a wait, each exchange under the other nano-batch's compute."""
    lines, now = [], 0
    for direction, layers in (("forward", (0, 1, 2)), ("backward", (2, 1, 0))):
        order = LAYER[::2] if direction == "forward" else LAYER[::-2]
        for layer in layers:
            for operation in order:
                for nano_batch in (0, 1):
                    events = [("compute", operation, now)]
                    if operation in order[:2]:
                        exchange = "dispatch" if operation == order[0] else "combine"
                        events.append(("flight", exchange, now + MS[operation]))
                    lines += [line(kind, f"{direction} layer {layer} {name}", nano_batch, begin, MS[operation], step, rank)
                              for kind, name, begin in events for rank in (0, 1)]
                    now += MS[operation]
    return lines


def trace_of(*steps):
    return {"otherData": {"program": "distca", "version": "1", "commit": "c"}, "traceEvents": sum(steps, [])}


def plan_of(pairs, capacity=(1, 1), lengths=(100, 60)):
    return {"document_lengths": lengths, "cluster": {"capacity": list(capacity)},
            "load": [{"pairs": one} for one in pairs]}


class Pictures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def written(self, name, value):
        path = self.folder / name
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    def kept(self, name, trace):
        code, text, error = draw("keep", self.written(name, trace), "--layer", 1, "--caption", "A & B")
        self.assertEqual((code, error), (0, ""))
        return self.written(f"kept_{name}", text)

    def drawn(self, *arguments):
        code, text, error = draw(*arguments)
        self.assertEqual((code, error), (0, ""))
        return xml.etree.ElementTree.fromstring(text)

    def drawn_layer(self, direction):
        """One operation after another, and ping-pong."""
        blocking = self.kept("blocking.json", trace_of(one_after_another(3)))
        return self.drawn("layer", blocking, self.kept("ping_pong.json", trace_of(in_turn(3))), "--pass", direction)

    def rectangles(self, svg, css):
        return [one for one in svg.iter(f"{SVG}rect") if one.get("class") == css]

    def words(self, svg):
        return [one.text for one in svg.iter(f"{SVG}text")]

    def test_draws_every_operation_of_a_layer_and_its_elapsed_time(self):
        for direction in ("forward", "backward"):
            svg = self.drawn_layer(direction)
            for operation in LAYER:
                ours = [one for one in self.rectangles(svg, operation) if one.get("opacity") is None]
                # Two panels, two nano-batches, two workers; one in the legend, and two more of core attention.
                self.assertEqual(len(ours), 8 + (2 if operation == "core_attention" else 1), operation)
            # Two waits a layer, two nano-batches, two workers, all of the first panel; one in the legend.
            self.assertEqual(len(self.rectangles(svg, "idle")), 9)
            self.assertIn("One operation after another: 200 ms", self.words(svg))
            self.assertIn("Ping-pong: 130 ms", self.words(svg))
            self.assertIn("A & B", self.words(svg))

    def test_lengths_are_in_proportion_to_time(self):
        svg = self.drawn_layer("forward")
        pixels = {operation: {float(one.get("width")) for one in self.rectangles(svg, operation)
                              if one.get("opacity") is None and float(one.get("height")) == 22}
                  for operation in LAYER[::2]}
        for operation, widths in pixels.items():
            for width in widths:
                self.assertAlmostEqual(width / min(pixels["pre_attention"]), MS[operation] / MS["pre_attention"],
                                       delta=0.01)

    def test_keeps_the_step_of_median_time_and_nothing_of_others(self):
        steps = [one_after_another(step, stretch) for step, stretch in ((3, 5), (4, 2), (5, 1))]
        kept = json.loads(self.kept("three.json", trace_of(*steps)).read_text())
        self.assertEqual({one["args"]["step"] for one in kept["traceEvents"]}, {4})
        self.assertEqual(kept["otherData"]["kept"], {"layer": 1, "step": 4, "of_steps": 3, "caption": "A & B"})
        self.assertFalse([one for one in kept["traceEvents"] if " core_attention " in one["name"]
                          and " layer 1 " not in one["name"]])

    def test_what_cannot_be_drawn_is_one_line(self):
        trace = self.written("two.json", trace_of(one_after_another(3), one_after_another(4)))
        kept = self.kept("blocking.json", trace_of(one_after_another(3)))
        strange = self.written("strange.json", trace_of([line("compute", "forward layer 1 attend", 0, 0, 1, 3)]))
        plans = [self.written(f"{i}.json", plan_of((1, 2), lengths=(100, 60 + i))) for i in (0, 1)]
        for arguments, words in (
                (("layer", trace, kept, "--pass", "forward"), "a whole trace: let `keep` choose a layer"),
                (("keep", trace, "--layer", 3), "no forward layer 3 of nano-batch 0"),
                (("keep", strange, "--layer", 1), "operations that this script does not know: attend"),
                (("load", *plans), "are not plans of the same documents")):
            code, text, error = draw(*arguments)
            self.assertEqual((code, text, error.count("\n")), (1, "", 1), error)
            self.assertIn(words, error)

    def test_draws_bars_in_proportion_and_each_servers_share(self):
        before = self.written("before.json", plan_of((3000, 1000, 2000), (1, 1, 2)))
        after = self.written("after.json", plan_of((1500, 1600, 2900), (1, 1, 2)))
        svg = self.drawn("load", before, after)
        bars = {css: [float(one.get("height")) for one in self.rectangles(svg, css)][1:] for css in ("before", "after")}
        for css, pairs in (("before", (3000, 1000, 2000)), ("after", (1500, 1600, 2900))):
            for height, one in zip(bars[css], pairs, strict=True):
                self.assertAlmostEqual(height / bars["before"][0], one / 3000, delta=0.001)
        self.assertTrue(any("2.000 times" in words for words in self.words(svg)), self.words(svg))
        self.assertTrue(any("1.067 times" in words for words in self.words(svg)), self.words(svg))
        dashed = [one for one in svg.iter(f"{SVG}path") if one.get("stroke-dasharray") == "6 3"]
        levels = [float(re.search(r"M[\d.]+ ([\d.]+)", one.get("d"))[1]) for one in dashed]
        self.assertEqual((len(levels), levels[0] == levels[1], levels[2] < levels[0]), (3, True, True))

    def test_committed_pictures_are_drawn_of_the_inputs_beside_them(self):
        folder = ROOT / "docs/pictures"
        for direction in ("forward", "backward"):
            committed = (folder / f"layer_{direction}.svg").read_text()
            svg = xml.etree.ElementTree.fromstring(committed)
            for operation in LAYER:
                self.assertGreater(len(self.rectangles(svg, operation)), 1, operation)  # one is the legend
            code, text, error = draw("layer", folder / "none.json", folder / "ping-pong.json", "--pass", direction)
            self.assertEqual((code, error), (0, ""))
            self.assertEqual(text, committed, f"layer_{direction}.svg: draw it again")


def tick(rank, number, begin, **parts):
    """A rank's tick, as bench/pipeline writes it."""
    length = sum(parts.values())
    return {"line": "tick", "arm": "aligned, whole even", "rank": rank, "tick": number, "begin_s": begin,
            "end_s": begin + length, "pass": "forward", "micro_batch": 0, "linear_s": 0, "own_s": 0, "served_s": 0} | parts


class Pipelines(unittest.TestCase):
    def run_script(self, *arguments):
        ran = subprocess.run([sys.executable, ROOT / "scripts/draw_pipeline.py", *map(str, arguments)], capture_output=True,
                             text=True, check=True)
        return ran.stdout

    def test_boxes_are_as_wide_as_the_work_and_never_overlap(self):
        head = {"line": "header", "machine": "m", "date": "2026-11-23T00:00:00Z", "commit": "c"}
        ticks = [tick(0, 0, 0, linear_s=2, own_s=1), tick(0, 1, 2.5, linear_s=1), tick(1, 0, 1, served_s=2)]
        others = [t | {"arm": arm} for arm in ("1F1B, single nano-batches", "aligned, attention even") for t in ticks]
        with tempfile.TemporaryDirectory() as folder:
            trace, kept = pathlib.Path(folder, "trace.jsonl"), pathlib.Path(folder, "kept.json")
            trace.write_text("\n".join(map(json.dumps, [head, *ticks, *others, ticks[0] | {"arm": "1F1B, pairs"}])))
            kept.write_text(self.run_script("keep", trace))
            self.assertEqual(len(json.loads(kept.read_text())["ticks"]), 9)
            svg = xml.etree.ElementTree.fromstring(self.run_script("draw", kept))
        boxes = {name: [one for one in svg.iter(f"{SVG}rect") if one.get("class") == name][1:]  # the first: the legend
                 for name in ("linear", "own", "served")}
        widths = {name: sorted(float(one.get("width")) for one in found) for name, found in boxes.items()}
        second = widths["own"][0]
        for name, seconds in (("linear", 3 * [1] + 3 * [2]), ("own", 3 * [1]), ("served", 3 * [2])):
            self.assertEqual(len(widths[name]), len(seconds))
            for width, wanted in zip(widths[name], seconds):
                self.assertAlmostEqual(width / second, wanted, delta=0.01)
        left = sorted(float(one.get("x")) for one in boxes["linear"])
        self.assertAlmostEqual((left[-1] - left[0]) / second, 3, delta=0.01)  # behind the tick before, which ends at 3 s
        self.assertIn("4.00 s, idle 25 %", "".join(svg.itertext()))  # 6 s of work in 2 x 4 s

    def test_the_committed_picture_is_drawn_of_the_input_beside_it(self):
        folder = ROOT / "docs/pictures"
        self.assertEqual(self.run_script("draw", folder / "pipeline.json"), (folder / "pipeline.svg").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
