#!/usr/bin/env python3
"""`distca train --trace` on real ranks, and `distca trace` of what it wrote: cli_trace_test.py PROGRAM."""

import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import distca_trace  # noqa: E402
import distca_trace_sums  # noqa: E402

PROGRAM = pathlib.Path(sys.argv.pop(1))
SECONDS = 300
STEPS = 6
SMALL_RUN = (
    "data.validation_fraction=0.1", "batch.nano_batch_tokens=512", "batch.nano_batches=2", "batch.max_document_tokens=384",
    "model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=4",
    "model.num_key_value_heads=2", "model.head_dim=8", f"train.steps={STEPS}")


def distca(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=SECONDS)


class CliTrace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "traces/run.json"
        draw = random.Random(3)
        (self.folder / "text").mkdir()
        for number in range(40):
            text = "".join(f"def {draw.choice(('alpha', 'beta', 'gamma'))}(x):\n    return x + {draw.randrange(10)}\n"
                           for _ in range(draw.randrange(1, 80 if number % 10 == 0 else 12)))
            (self.folder / f"text/{number:02}.py").write_text(text)
        self.done(distca("data", "prepare", "--text", self.folder / "text", "--out", self.folder / "data"))

    def done(self, ran):
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def train(self, *more, folder="run"):
        return distca("train", f"data.prefix={self.folder}/data", f"train.output_dir={self.folder / folder}", *SMALL_RUN,
                      "--workers", 2, *more)

    def traced(self, *more):
        """Trains with --trace; what the file says of the run, its events by rank, and their analysis."""
        said = self.done(self.train(*more, "--trace", self.file))
        self.assertIn(f"distca trace {self.file}", said)
        other, events = distca_trace.read_trace(self.file)
        ranks = [[event for event in events if event.rank == rank] for rank in range(len(other["ranks"]))]
        analysis = distca_trace.Analysis(self.file, other, events)
        self.assertEqual(analysis.unmatched_waits, 0)
        self.expect_every_message_on_both_sides(ranks)
        self.expect_an_arrow_for_every_message()
        for of_rank in ranks:
            self.expect_events_within_their_steps(of_rank)
            self.expect_compute_events_nest(of_rank)
        self.expect_parts_add_up(ranks, analysis)
        return other, ranks, analysis

    def expect_every_message_on_both_sides(self, ranks):
        issues = {(event.rank, event.step, event.tag): event for events in ranks for event in events
                  if event.kind == "launch"}
        for event in sum(ranks, []):
            if event.kind not in ("launch", "wait"):
                continue
            for peer in event.to:
                there = issues[peer, event.step, event.tag]
                self.assertEqual(there.operation, event.operation)
                if event.kind == "launch":
                    self.assertIn(event.rank, there.awaited)
            for peer in event.awaited:
                there = issues[peer, event.step, event.tag]
                self.assertIn(event.rank, there.to)
                if event.kind == "wait":
                    self.assertLessEqual(there.begin, event.end)

    def expect_an_arrow_for_every_message(self):
        lines = json.loads(self.file.read_text())["traceEvents"]
        begins, ends = (Counter(line["id"] for line in lines if line["ph"] == phase) for phase in "sf")
        self.assertGreater(len(begins), 0)
        self.assertEqual(begins, ends)
        self.assertEqual(max(begins.values()), 1)

    def expect_events_within_their_steps(self, events):
        steps = {event.step: event for event in events if event.kind == "step"}
        for event in events:
            self.assertGreaterEqual(event.begin, steps[event.step].begin, event)
            self.assertLessEqual(event.end, steps[event.step].end, event)

    def expect_compute_events_nest(self, events):
        """Perfetto draws events of one thread only where they lie within or beside each other."""
        ends = [math.inf]
        for event in events:
            if event.kind == "flight":
                continue
            while ends[-1] <= event.begin:
                ends.pop()
            self.assertLessEqual(event.end, ends[-1], event)
            ends.append(event.end)

    def expect_parts_add_up(self, ranks, analysis):
        for events, steps in zip(ranks, analysis.steps, strict=True):
            spans = [event for event in events if event.kind == "step"]
            self.assertEqual([event.step for event in spans], analysis.numbers)
            for event, step in zip(spans, steps):
                self.assertEqual(event.end - event.begin, sum(step[part] for part in distca_trace_sums.PARTS))

    def test_a_run_of_two_workers_leaves_a_trace_whose_parts_add_up(self):
        other, ranks, analysis = self.traced()
        self.assertEqual((len(ranks), other["overlap"], analysis.numbers), (2, "ping-pong", [2, 3, 4]))
        for rank, events in zip(other["ranks"], ranks):
            self.assertEqual((rank["role"], rank["clock_uncertainty_s"]), ("worker", 0))  # one machine, one clock
            self.assertLessEqual({"plan", "plan hash", "forward core_attention", "backward pre_attention", "gradient norm",
                                  "grad_add", "grad_norm",
                                  "loss sum", "optimizer"}, {event.operation for event in events})

    def test_servers_and_overlap_modes_are_traced_alike(self):
        for overlap in ("none", "within"):
            other, ranks, analysis = self.traced(
                "servers.dedicated=1", "train.trace_steps=1", "train.trace_first_step=3", "train.overwrite=true",
                f"train.overlap={overlap}")
            self.assertEqual((len(ranks), other["overlap"], analysis.numbers), (3, overlap, [3]))
            self.assertEqual(other["ranks"][2]["role"], "server")
            self.assertGreater(analysis.totals[2]["bytes"], 0)
            self.assertGreater(analysis.totals[2]["compute"], 0)

    def test_ranks_that_divide_layers_wait_for_rows_and_send_what_the_metrics_say(self):
        other, ranks, analysis = self.traced("parallel.tensor_model_parallel_size=2")
        self.assertEqual([(rank["role"], rank["tensor"]) for rank in other["ranks"]], [("worker", 0), ("worker", 1)])
        self.assertGreater(sum(total["tensor"] for total in analysis.totals), 0)
        self.assertEqual([total["exposed"] for total in analysis.totals], [0, 0])  # one server exchanges nothing
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        for step in analysis.numbers:
            sent = sum(event.bytes for event in sum(ranks, []) if (event.kind, event.step) == ("launch", step)
                       and distca_trace_sums.TENSOR.search(event.operation))
            self.assertEqual(sent, lines[step - 1]["bytes_tensor"])
        for events in ranks:
            loss = [event for event in events if event.operation == "forward loss" and event.step == 2]
            waits = [event for event in events if (event.kind, event.operation, event.step) == ("wait", "loss rows", 2)]
            self.assertEqual(len(loss), 2)
            self.assertEqual(len(waits) % 3, 0)  # rows, statistics and sums of a chunk
            for wait in waits:
                self.assertTrue(any(one.begin <= wait.begin and wait.end <= one.end for one in loss))

    def test_a_traced_run_learns_the_same_as_one_that_is_not(self):
        losses = []
        for folder, more in (("plain", ()), ("traced", ("--trace", self.file))):
            self.done(self.train("comm.backend=threads", *more, folder=folder))
            lines = (self.folder / folder / "metrics.jsonl").read_text().splitlines()
            losses.append([json.loads(line)["loss"] for line in lines])
        self.assertEqual(len(losses[0]), STEPS)
        self.assertEqual(losses[0], losses[1])

    def test_the_table_and_its_json_say_where_the_time_went(self):
        self.done(self.train("comm.backend=threads", "--trace", self.file))
        table = self.done(distca("trace", self.file))
        for words in ("2 ranks, steps 2 to 4, overlap ping-pong", "0 worker", "1 worker", "Lost: ", "imbalance", "exposed",
                      "copies", "launch: issues", "computes longest", "forward core_attention", "GFLOP/s",
                      "of nano-batch ", "\nnano-batch 0", "\nnano-batch 1"):
            self.assertIn(words, table)
        made = json.loads(self.done(distca("trace", "--json", self.file)))
        totals = [rank["total"] for rank in made["ranks"]]
        self.assertEqual(len(totals), 2)
        for rank, total in zip(made["ranks"], totals):
            self.assertEqual(sum(total["parts"].values()), total["step_ns"])
            self.assertEqual(len(rank["steps"]), 3)
        lost = sum(total["step_ns"] - total["parts"]["compute_ns"] for total in totals) / 2 / 3 * 1e-6
        self.assertAlmostEqual(made["lost_ms"], lost, delta=1e-9 * lost)

    def test_a_run_and_its_trace_are_drawn_on_one_page(self):
        trace = self.folder / "run/trace.json"
        self.done(self.train("comm.backend=threads", "--trace", trace))
        self.done(distca("report", self.folder / "run", "--out", self.folder / "report.html"))
        page = (self.folder / "report.html").read_text()
        self.assertLess(len(page), 1_000_000)
        for words in (f"trace, measured</td><td>{trace}", "of which rank ", "the most from rank ",
                      "Balancing takes core attention", "Tensors take at most", "The loss goes from"):
            self.assertIn(words, page)

    def test_the_program_goes_on_as_python_whatever_its_folder_and_words(self):
        """A file may be named as an option is; modules of this folder are not Python's."""
        (self.folder / "json.py").write_text("1 / 0")
        (self.folder / "--json").write_text("[]")
        ran = subprocess.run([PROGRAM.resolve(), "trace", "--", "--json"], cwd=self.folder, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": "."}, timeout=SECONDS)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))
        self.assertTrue(ran.stderr.startswith("distca: error: --json: not a trace that"), ran.stderr)

    def test_a_trace_that_cannot_be_written_later_costs_nothing_but_the_trace(self):
        # The weights stand where the trace's folder would be.
        weights = self.folder / "run/model.safetensors"
        ran = self.train("--trace", weights / "trace.json")
        self.assertEqual(ran.returncode, 1)
        self.assertIn(f"{weights}: cannot create", ran.stderr)
        self.assertEqual(len((self.folder / "run/metrics.jsonl").read_text().splitlines()), STEPS)
        self.assertTrue(weights.is_file())


if __name__ == "__main__":
    unittest.main(verbosity=2)
