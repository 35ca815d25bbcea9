#!/usr/bin/env python3
"""What cli/distca_trace_against.py makes of two traces, and how predicted traces of some ranks are read."""

import contextlib
import copy
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import distca_trace  # noqa: E402
from trace_test import KINDS, US, event, exchange, file_of, of_tag, two_ranks, two_stages  # noqa: E402


def predicted(text, numbers=None, **more):
    """The text of a trace as one that was predicted; numbers: of its ranks in the run, where it has not all."""
    root = json.loads(text)
    ranks = root["otherData"]["ranks"]
    root["otherData"]["predicted"] = {"machine": "m", "num_ranks": len(ranks), "alike": 1, **more}
    for rank, number in zip(ranks, numbers or ()):
        rank["rank"] = number
    return json.dumps(root)


def again(events, step, later):
    """The same events in another step, later by so many microseconds."""
    events = copy.deepcopy(events)
    for one in events:
        one["args"]["step"] = step
        one["ts"] += later
    return events


def slower_ranks():
    """Two ranks as in two_ranks(), but rank 0 computes 4 us longer, and so waits 4 us less for rank 1."""
    events = two_ranks()
    attention = next(one for one in events if "core_attention" in one["name"])
    attention["dur"] += 4
    of_tag(events, "wait")["ts"] += 4
    of_tag(events, "wait")["dur"] -= 4
    return events


class TraceAgainst(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.paths = [pathlib.Path(folder.name) / name for name in ("predicted.json", "measured.json")]

    def against(self, first, second):
        """Of two texts."""
        for path, text in zip(self.paths, (first, second)):
            path.write_text(text)
        return distca_trace.report_of(self.paths[0], self.paths[1])

    def refusal(self, first, second):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(SystemExit) as end:
                self.against(first, second)
        self.assertEqual(end.exception.code, 2)
        self.assertRegex(said.getvalue(), r"\Adistca: error: .*\n\Z")
        return said.getvalue()

    def test_a_trace_does_not_differ_from_itself(self):
        text = predicted(file_of(two_ranks()))
        report = self.against(text, text)
        made = report.json()
        for rows in (made["parts"], made["operations"], made["ranks"], [made["step"]]):
            self.assertEqual({row["off_ms"] for row in rows}, {0})
            self.assertTrue(rows)
        self.assertIn("A step is predicted at 0.10 ms and took 0.10 ms: off by +0.00 ms (+0.0 %)\n", report.text())

    def test_what_differs_is_named_by_part_operation_and_rank(self):
        report = self.against(predicted(file_of(slower_ranks())), file_of(two_ranks()))
        made = report.json()
        parts = {row["part"]: row for row in made["parts"]}
        # Rank 0 computes 4 us more and waits 4 us less for rank 1: 2 us in the mean of both.
        self.assertAlmostEqual(parts["compute"]["off_ms"], 2e-3)
        self.assertAlmostEqual(parts["compute"]["off"], 2 / ((17 + 48 + 20) / 2))
        self.assertAlmostEqual(parts["imbalance"]["off_ms"], -2e-3)
        self.assertEqual([row["part"] for row in made["parts"][:2]], ["compute", "imbalance"])
        self.assertEqual([(row["part"], row["operation"]) for row in made["operations"][:2]],
                         [("compute", "forward core_attention"), ("imbalance", "forward dispatch")])
        self.assertEqual(made["step"]["off_ms"], 0)
        lines = [line.split() for line in report.text().splitlines()]
        self.assertIn("Most of all differs forward core_attention: +0.00 ms".split(), lines)
        self.assertIn("forward dispatch: imbalance 0.01 0.01 -0.00 -13.3 %".split(), lines)
        self.assertIn("0 worker 0.10 0.10 +0.00 +0.0 % forward core_attention +0.00".split(), lines)

    def test_times_are_means_over_the_steps_that_both_have(self):
        later = again(two_ranks(), 3, 200)
        for one in later:
            if one["cat"] == "step":
                one["dur"] += 30
        report = self.against(predicted(file_of(two_ranks())), file_of(two_ranks() + later))
        self.assertEqual([trace["steps"] for trace in report.json()["traces"]], [[1], [1]])
        self.assertEqual(report.json()["step"]["off_ms"], 0)
        self.assertNotIn("No step is in both", report.text())
        report = self.against(predicted(file_of(two_ranks())), file_of(again(two_ranks(), 2, 0) + later))
        self.assertIn("No step is in both: steps have other documents", report.text())
        made = report.json()
        self.assertAlmostEqual(made["step"]["measured_ms"], 0.115)
        self.assertAlmostEqual(made["step"]["off"], -15 / 115)
        self.assertEqual([trace["steps"] for trace in made["traces"]], [[1], [2, 3]])
        (gaps,) = [row for row in made["operations"] if row["off_ms"]]
        self.assertEqual((gaps["part"], gaps["operation"]), ("gaps", ""))

    def test_differences_of_parts_and_of_operations_add_up_to_the_steps(self):
        for seed in range(40):
            draw, texts = random.Random(seed), []
            for _ in range(2):
                events = []
                for rank in range(3):
                    events.append(event("step", "step", 0, 500 + draw.randrange(100), rank))
                    for _ in range(30):
                        begin = draw.randrange(550)
                        events.append(exchange(draw.choice(KINDS[1:]), begin, begin + draw.randrange(60),
                                               [draw.randrange(3)], rank, tag=draw.randrange(8)))
                texts.append(file_of(events, 3, (0, 1) if seed % 2 else ()))
            made = self.against(predicted(texts[0]), texts[1]).json()
            for rows, count in ((made["parts"], 1), (made["operations"], 1), (made["ranks"], 3)):
                self.assertAlmostEqual(sum(row["off_ms"] for row in rows) / count, made["step"]["off_ms"])
                offs = [abs(row["off_ms"]) for row in rows]
                self.assertEqual(offs, sorted(offs, reverse=True))

    def test_more_rows_than_are_shown_are_summed(self):
        events = [event("step", "step 1", 0, 100)]
        events += [event("compute", f"op {number}", number, number + 1) for number in range(30)]
        text = self.against(predicted(file_of(events, 1)), file_of(events[:1], 1)).text()
        self.assertIn("15 others", text)
        self.assertIn("between operations", text)

    def test_ranks_that_do_the_same_stand_for_each_other(self):
        """Of four ranks, 0 and 2 were played; each also waits for the rank next to it."""
        events = two_ranks()
        for one in events:
            one["pid"] *= 2
            for key in ("from", "to"):
                if key in one["args"]:
                    one["args"][key] = [2 * peer for peer in one["args"][key]]
        gather = {"name": "forward layer 3 gather_rows for pre_attention of nano-batch 1", "tag": 99, "rank": 2}
        events += [event("launch", begin=51, end=52, to=[3], **gather),
                   event("wait", begin=52, end=57, **{"from": [3]}, **gather)]
        text = predicted(file_of(events), [0, 2], num_ranks=4, alike=2)
        self.paths[0].write_text(text)
        analysis = distca_trace.analysis_of(self.paths[0])
        self.assertEqual(analysis.unmatched_waits, 0)
        self.assertEqual([steps[0]["tensor"] for steps in analysis.steps], [0, 5 * US])
        self.assertEqual([steps[0]["imbalance"] for steps in analysis.steps], [40 * US, 0])
        text_of_it = distca_trace.Report(analysis).text()
        self.assertIn("2 of 4 ranks, step 1, overlap within, commit abc; predicted for machine m\n", text_of_it)
        self.assertIn("\n2 server ", text_of_it)
        self.assertIn("\nRank 2 came last", text_of_it)
        # The run has all four.
        measured = two_ranks() + [{**one, "pid": one["pid"] + 2} for one in two_ranks()]
        four = json.loads(file_of(measured, 4))
        for place, rank in enumerate(four["otherData"]["ranks"]):
            rank["role"] = "server" if place == 2 else "worker"
        report = self.against(text, json.dumps(four))
        self.assertIn("Compared are the 2 ranks of 4 that the first one has\n", report.text())
        self.assertEqual(sorted(row["rank"] for row in report.json()["ranks"]), [0, 2])

    def test_waits_for_ranks_that_a_shortened_trace_has_not_are_counted(self):
        events = two_ranks()
        of_tag(events, "wait")["args"]["from"] = [3]
        self.paths[0].write_text(predicted(file_of(events), [0, 1], num_ranks=4))
        self.assertEqual(distca_trace.analysis_of(self.paths[0]).unmatched_waits, 1)

    def test_traces_of_other_ranks_or_stages_are_refused(self):
        two = file_of(two_ranks())
        stages = file_of(two_stages(), 3, (0, 1))
        names = {"first": self.paths[0], "second": self.paths[1]}
        for first, second, words in (
                (predicted(two), stages, "{second}: a trace of 3 ranks, {first} is one of 2"),
                (predicted(two), file_of([event("step", "step", 0, 1)], 1), "{second}: a trace of 1 rank, "),
                (predicted(stages), file_of(two_stages(), 3, (1, 0)),
                 "{second}: rank 0 is a worker, stage 1, in {first} a worker, stage 0"),
                (predicted(stages), file_of(two_stages(), 3),
                 "{second}: rank 0 is a worker, in {first} a worker, stage 0"),
                (predicted(two), predicted(two.replace('"pid": 1', '"pid": 3'), [0, 3]),
                 "{second}: it has no rank 1, which "),
                (predicted(two), "[]", "{second}: not a trace")):
            self.assertIn(words.format(**names), self.refusal(first, second))

    def test_a_damaged_prediction_is_refused(self):
        text = predicted(file_of(two_ranks()), [0, 1])
        for old, new, words in (('"machine": "m"', '"machine": 3', '"machine" is 3'),
                                ('"alike": 1', '"alike": 0', '"alike" is 0'),
                                ('"num_ranks": 2', '"num_rank": 2', 'no "num_ranks"'),
                                ('"rank": 1', '"rank": 0', 'two of "ranks" have the same'),
                                ('"rank": 1', '"rank": -1', '"rank" is -1'),
                                ('"rank": 1', '"rank": 5', "an event of rank 1")):
            self.assertIn(old, text)
            self.assertIn(words, self.refusal(text.replace(old, new, 1), text))


if __name__ == "__main__":
    unittest.main()
