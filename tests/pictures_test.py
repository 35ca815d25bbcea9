#!/usr/bin/env python3
"""What scripts/draw_pictures.py draws, from small traces and plans of known figures. Drawing itself is matplotlib's."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from run_command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import draw_pictures  # noqa: E402

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

    def test_a_layer_takes_as_long_as_its_events_show(self):
        for direction in ("forward", "backward"):
            for step, wanted in ((one_after_another(3), 200), (in_turn(3), 130)):
                kept = json.loads(self.kept("trace.json", trace_of(step)).read_text())
                events = draw_pictures.events_of(kept["traceEvents"], "kept")
                self.assertEqual(draw_pictures.elapsed(draw_pictures.windows_of(events, direction, 1)), wanted)

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

    def test_a_server_is_busy_by_its_share_of_the_load(self):
        for pairs, wanted in (((3000, 1000, 2000), 2), ((1500, 1600, 2900), 1600 / 1500)):
            self.assertAlmostEqual(draw_pictures.max_over_mean(plan_of(pairs, (1, 1, 2))), wanted)


def tick(rank, number, begin, **parts):
    """A rank's tick, as docs/pictures/pipeline.json has it."""
    return {"arm": "aligned, whole even", "rank": rank, "tick": number, "begin_s": begin,
            "end_s": begin + sum(parts.values()), "linear_s": 0, "own_s": 0, "served_s": 0} | parts


class Pipelines(unittest.TestCase):
    def test_boxes_are_as_wide_as_the_work_and_never_overlap(self):
        ticks = [tick(0, 1, 2.5, linear_s=1), tick(0, 0, 0, linear_s=2, own_s=1)]
        self.assertEqual(list(draw_pictures.boxes_of(ticks)), [("linear_s", 0, 2), ("own_s", 2, 1), ("linear_s", 3, 1)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
