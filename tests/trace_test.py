#!/usr/bin/env python3
"""What cli/distca_trace.py makes of traces of known times, and how it refuses those that are none."""

import contextlib
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
import distca_trace  # noqa: E402
import distca_trace_file  # noqa: E402
import distca_trace_report  # noqa: E402
import distca_trace_sums  # noqa: E402

US = 1000
KINDS = distca_trace_file.KINDS


def event(kind, name, begin, end, rank=0, **arguments):
    """From `begin` to `end` microseconds."""
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": 0, "ts": begin, "dur": end - begin,
            "args": {"step": 1, **arguments}}


def exchange(kind, begin, end, peers, rank=0, nano_batch=1, tag=7, **arguments):
    sent = {} if kind == "wait" else {"to": peers, "bytes": 1000, "received_bytes": 2000}
    return event(kind, f"forward layer 3 dispatch of nano-batch {nano_batch}", begin, end, rank, layer=3,
                 nano_batch=nano_batch, tag=tag, **{"from": peers, **sent, **arguments})


def two_ranks():
    """Two ranks that exchange once and sum once in a step of 100 us.

    Rank 0 has issued at 12 us, rank 1 at 50 us; rank 0 waits from 20 to 60 us for rank 1, which never waits. In the sum
    rank 1 comes at 80 us, rank 0 waits from 70 to 95 us.
    """
    return [
        event("step", "step 1", 0, 100), event("wait", "plan", 1, 4),
        event("copy", "forward layer 3 dispatch of nano-batch 1", 8, 10), exchange("launch", 10, 12, [1]),
        exchange("flight", 12, 60, [1]),
        event("compute", "forward layer 3 core_attention of nano-batch 0", 13, 20, layer=3, micro_batch=0, nano_batch=0,
              flops=7e3),
        exchange("wait", 20, 60, [1]), event("compute", "grad_reduce", 62, 97),
        event("wait", "gradient sum", 70, 95, tag=2**30, **{"from": [1]}),
        event("step", "step 1", 0, 100, rank=1), event("compute", 'forward "pre"', 0, 48, rank=1),
        exchange("launch", 48, 50, [0], rank=1), event("compute", "grad_reduce", 78, 99, rank=1),
        event("launch", "gradient sum", 79, 80, rank=1, tag=2**30, to=[0])]


def of_tick(kind, name, tick, begin, end, rank, nano_batch=None, **arguments):
    """A nano-batch of a micro-batch alone; none: the rank serves exchange 3."""
    if nano_batch is None:
        return event(kind, f"{name} of exchange 3, layer step 0", begin, end, rank, tick=tick, **arguments)
    return event(kind, f"{name} of nano-batch {nano_batch}", begin, end, rank, tick=tick, nano_batch=nano_batch,
                 micro_batch=nano_batch, **arguments)


def two_stages():
    """Ranks 0 and 1 are stages, rank 2 is a dedicated server. One nano-batch goes forward through both in 100 us."""
    serves = [one for rank, begin, end in ((1, 30, 42), (2, 30, 36)) for one in (
        of_tick("launch", "forward dispatch", 0, 4, 5, rank, tag=7, **{"from": [0], "bytes": 0, "received_bytes": 9}),
        of_tick("wait", "forward dispatch", 0, 5, begin, rank, tag=7, **{"from": [0]}),
        of_tick("compute", "forward core_attention", 0, begin, end, rank))]
    return [
        *(event("step", "step 1", 0, 100, rank) for rank in range(3)), *serves,
        of_tick("compute", "forward pre_attention", 0, 0, 25, 0, 0),
        of_tick("launch", "forward dispatch", 0, 25, 26, 0, 0, tag=7, to=[1, 2]),
        of_tick("compute", "forward core_attention", 0, 30, 40, 0, 0),
        of_tick("compute", "forward post_attention", 0, 40, 50, 0, 0),
        of_tick("launch", "forward p2p (send)", 0, 50, 51, 0, 0, tag=8, to=[1]),
        of_tick("wait", "forward p2p (receive)", 0, 42, 52, 1, 0, tag=8, **{"from": [0]}),
        of_tick("compute", "forward pre_attention", 1, 52, 78, 1, 0),
        of_tick("launch", "forward dispatch", 1, 78, 79, 1, 0, tag=9, to=[0]),
        of_tick("wait", "forward dispatch", 1, 55, 80, 0, tag=9, **{"from": [1]}),
        of_tick("compute", "forward core_attention", 1, 80, 89, 0),
        of_tick("compute", "forward core_attention (home, rest)", 1, 79, 88, 1, 0),
        of_tick("wait", "forward combine", 1, 88, 91, 1, 0, layer=1, tag=10, **{"from": [0]}),
        of_tick("launch", "forward combine", 1, 89, 90, 0, tag=10, to=[1]),
        of_tick("compute", "forward post_attention", 1, 91, 98, 1, 0)]


def of_tensor(kind, name, begin, end, rank, tag, **arguments):
    """Of two ranks that divide layers."""
    peers = {} if kind == "compute" else {"from": [1 - rank], "to": [1 - rank], "bytes": 8 * (kind == "launch")}
    return event(kind, name, begin, end, rank, **({"tag": tag} if tag else {}), **peers, **arguments)


def two_parts():
    """Ranks 0 and 1 divide a layer and the loss in a step of 100 us, and exchange nothing with others."""
    gather = {"name": "forward layer 0 gather_rows for pre_attention of nano-batch 2", "tag": 5, "layer": 0, "nano_batch": 2}
    sums = {"name": "backward sum_rows of embed of nano-batch 2", "tag": 6, "nano_batch": 2}
    loss = {"name": "loss rows", "tag": 2**30}
    return [
        *(event("step", "step 1", 0, 100, rank) for rank in (0, 1)),
        of_tensor("compute", "forward layer 0 attention_norm of nano-batch 2", 0, 10, 0, 0, layer=0, nano_batch=2),
        of_tensor("copy", begin=10, end=11, rank=0, **gather), of_tensor("launch", begin=11, end=12, rank=0, **gather),
        of_tensor("wait", begin=12, end=40, rank=0, **gather), of_tensor("flight", begin=11, end=40, rank=0, **gather),
        of_tensor("launch", begin=29, end=30, rank=1, **gather), of_tensor("wait", begin=33, end=38, rank=1, **gather),
        of_tensor("flight", begin=29, end=38, rank=1, **gather),
        of_tensor("compute", "forward loss of nano-batch 2", 60, 90, 0, 0, nano_batch=2),
        of_tensor("launch", begin=70, end=71, rank=0, **loss), of_tensor("wait", begin=71, end=80, rank=0, **loss),
        of_tensor("launch", begin=72, end=73, rank=1, **loss), of_tensor("wait", begin=73, end=79, rank=1, **loss),
        of_tensor("launch", begin=90, end=91, rank=0, **sums), of_tensor("launch", begin=90, end=91, rank=1, **sums),
        of_tensor("wait", begin=92, end=95, rank=1, **sums),
        event("launch", "gradient norm", 96, 97, 0, tag=2**30 + 1, to=[1]),
        event("launch", "gradient norm", 96, 97, 1, tag=2**30 + 1, to=[0]),
        event("wait", "gradient norm", 97, 99, 0, tag=2**30 + 1, **{"from": [1]})]


def file_of(events, num_ranks=2, stages=(), tensor=1):
    server = len(stages) or 1
    ranks = [{"role": "server" if rank == server else "worker", "clock_offset_s": -0.125 * rank, "clock_drift": 0,
              "clock_uncertainty_s": 2e-6 * rank} for rank in range(num_ranks)]
    for rank, stage in zip(ranks, stages):
        rank["stage"] = stage
    for number, rank in enumerate(ranks if tensor > 1 else ()):
        rank["tensor"] = number % tensor
    return json.dumps({"otherData": {"program": "distca", "version": "1.2", "commit": "abc", "overlap": "within",
                                     "ranks": ranks}, "traceEvents": events})


def elapsed(step):
    return sum(step[part] for part in distca_trace_sums.PARTS)


def of_tag(events, kind, tag=7, rank=0):
    return next(one for one in events if (one["cat"], one["args"].get("tag"), one["pid"]) == (kind, tag, rank))


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "run.json"

    def analysis(self, events, num_ranks=2, stages=(), tensor=1):
        self.path.write_text(file_of(events, num_ranks, stages, tensor))
        return distca_trace.Analysis(self.path, *distca_trace.read_trace(self.path))

    def refusal(self, text):
        """Of a file with this text; "taken" where there is none."""
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                distca_trace.Analysis(self.path, *distca_trace.read_trace(self.path))
                return "taken"
            except SystemExit as end:
                self.assertEqual(end.code, 2)
        self.assertTrue(said.getvalue().startswith(f"distca: error: {self.path}: "), said.getvalue())
        self.assertEqual(said.getvalue().count("\n"), 1)
        return said.getvalue()

    def expect(self, step, **parts_us):
        self.assertEqual({part: step[part] for part in parts_us}, {part: us * US for part, us in parts_us.items()})

    def test_each_moment_counts_as_what_the_innermost_event_says(self):
        step = self.analysis(two_ranks()).steps[0][0]
        # Core attention, the sum around its wait.
        self.expect(step, compute=7 + 35 - 25, copies=2, issues=2, gaps=1 + 4 + 1 + 2 + 3, other=3)

    def test_a_wait_is_imbalance_until_the_last_awaited_rank_had_issued_then_exposed(self):
        analysis = self.analysis(two_ranks())
        # 50 to 60; 80 to 95; 20 to 50 and 70 to 80, rank 1 came last both times.
        self.expect(analysis.steps[0][0], exposed=10, sums=15, imbalance=30 + 10)
        self.assertEqual([analysis.steps[0][0]["waited_for", rank] for rank in (0, 1)], [0, 40 * US])
        (first, _), (second, waits) = analysis.exchanges.items()  # most exposed first
        self.assertEqual((first, second), (("gradient sum", -1, -1), ("forward dispatch", 3, 1)))
        # Bytes of both ranks.
        self.assertEqual(waits, {"exposed_ns": 10 * US, "imbalance_ns": 30 * US, "bytes": 2000})

    def test_of_several_awaited_ranks_the_last_to_issue_counts(self):
        events = two_ranks()
        events += [{**one, "pid": 2} for one in events if one["pid"] == 1]
        of_tag(events, "launch", rank=2)["dur"] += 5
        of_tag(events, "wait")["args"]["from"] = [1, 2]
        step = self.analysis(events, 3).steps[0][0]
        self.expect(step, exposed=5)
        self.assertEqual([step["waited_for", rank] for rank in range(3)], [0, 10 * US, 35 * US])

    def test_a_wait_for_sends_is_measured_by_the_receiving_rank(self):
        events = two_ranks()
        arguments = of_tag(events, "wait")["args"]
        arguments["to"] = arguments.pop("from")
        self.expect(self.analysis(events).steps[0][0], exposed=10)

    def test_a_wait_whose_issue_is_missing_is_exposed_and_counted(self):
        events = two_ranks()
        self.assertEqual(self.analysis(events).unmatched_waits, 0)
        events.remove(of_tag(events, "launch", rank=1))
        analysis = self.analysis(events)
        self.assertEqual(analysis.unmatched_waits, 1)
        self.expect(analysis.steps[0][0], exposed=40)
        self.assertIn("\n1 waits for messages whose issue is not in the trace", distca_trace.Report(analysis).text())

    def test_hidden_is_time_under_way_without_the_waits_each_moment_once(self):
        events = two_ranks()
        self.expect(self.analysis(events).steps[0][0], hidden=8)  # 12 to 20
        # Under way from 15 to 75 as well: until the wait at 20, and after it from 60 to the sum's at 70.
        events.append(exchange("flight", 15, 75, [1]))
        self.expect(self.analysis(events).steps[0][0], hidden=8 + 10)

    def test_operations_are_summed_over_layers_without_what_lies_inside_them(self):
        self.assertEqual(list(self.analysis(two_ranks()).operations.items()), [  # longest first
            ('forward "pre"', {"count": 1, "flops": 0, "rank_ns": [0, 48 * US]}),
            ("grad_reduce", {"count": 2, "flops": 0, "rank_ns": [10 * US, 20 * US]}),
            ("forward core_attention", {"count": 1, "flops": 7e3, "rank_ns": [7 * US, 0]})])

    def test_what_a_nano_batch_without_a_partner_waits_for_is_its_own(self):
        # Nano-batches 0 and 1 send under each other's attention, 2 has an empty partner.
        events = []
        for rank in (0, 1):
            events.append(event("step", "step 1", 0, 100, rank))
            for nano_batch, issued, begin, end in ((0, 1, 20, 21), (1, 2, 40, 41), (2, 50, 51, 90)):
                events += [exchange("launch", issued, issued + 1, [1 - rank], rank, nano_batch, 10 + nano_batch),
                           exchange("wait", begin, end, [1 - rank], rank, nano_batch, 10 + nano_batch)]
        (empty, waits), *others = self.analysis(events).exchanges.items()
        self.assertEqual((empty, waits["exposed_ns"]), (("forward dispatch", 3, 2), 2 * 39 * US))
        self.assertEqual(others, [(("forward dispatch", 3, nano_batch), {"exposed_ns": 2 * US, "imbalance_ns": 0,
                                                                         "bytes": 2000}) for nano_batch in (0, 1)])

    def test_bytes_are_those_issued(self):
        total = self.analysis(two_ranks()).totals[0]
        self.assertEqual((total["bytes"], total["received_bytes"]), (1000, 2000))

    def test_the_parts_add_up_to_the_step_exactly_whatever_the_events(self):
        """Events at random, some nested, some across others' ends, some beyond the step; half of them of pipelines.

        In a third, ranks divide layers.
        """
        for seed in range(200):
            draw, events, stages = random.Random(seed), [], (0, 1) if seed % 2 else ()
            tensor = 1 + seed % 3 // 2
            for rank in range(3):
                for step in (1, 2):
                    begin = 1000 * step + draw.randrange(50)
                    events.append(event("step", "step", begin, begin + 500 + draw.randrange(100), rank, step=step))
                    for _ in range(40):
                        begin = 1000 * step + draw.randrange(650)
                        events.append(exchange(draw.choice(KINDS[1:]), begin, begin + draw.randrange(60),
                                               [draw.randrange(3)], rank, tag=draw.randrange(8), step=step))
                        events.append(of_tick(draw.choice(KINDS[1:]), "forward combine", draw.randrange(4), begin,
                                              begin + draw.randrange(60), rank, draw.choice((0, None)), step=step))
                        name = draw.choice(("loss rows", "forward gather_rows for embed", "forward sum_rows of embed"))
                        begin = 1000 * step + draw.randrange(650)
                        events.append(event(draw.choice(KINDS[1:]), name, begin, begin + draw.randrange(60), rank, step=step,
                                            tag=draw.randrange(8, 12), to=[draw.randrange(3)]))
            analysis = self.analysis(events, 3, stages, tensor)
            self.assertEqual(any(total["tensor"] for total in analysis.totals), tensor > 1)
            self.assertEqual("tensor" in analysis.parts, tensor > 1)
            bubbles = [total["bubble"] for total in analysis.totals]
            self.assertEqual((any(bubbles), bubbles[2]), (bool(stages), 0))
            self.assertEqual(bool(analysis.ticks), bool(stages))
            for tick in analysis.ticks:
                self.assertGreaterEqual(tick["length_ns"], 0)
            for one in events:
                if one["cat"] == "step":
                    step = analysis.steps[one["pid"]][one["args"]["step"] - 1]
                    self.assertEqual(elapsed(step), one["dur"] * US)
                    self.assertEqual(step["step"], one["dur"] * US)
                    self.assertLessEqual(step["hidden"] + step["idle"], one["dur"] * US)
                    self.assertGreaterEqual(min(step.values()), 0)
            for rank, total in enumerate(analysis.totals):
                self.assertEqual(elapsed(total), sum(
                    one["dur"] * US for one in events if (one["cat"], one["pid"]) == ("step", rank)))

    def test_a_stage_without_work_of_its_own_and_waits_for_p2p_make_the_bubble(self):
        analysis = self.analysis(two_stages(), 3, (0, 1))
        first, second, server = (steps[0] for steps in analysis.steps)
        self.expect(first, bubble=25, imbalance=0, exposed=0, compute=54)
        # Its own combine is none of it: rank 0 had issued it 1 us before it came.
        self.expect(second, bubble=25 + 10, imbalance=2, exposed=1, sums=0, gaps=4 + 2)
        # A server has no work of its own in any tick: its waits are those of a run without a pipeline.
        self.expect(server, bubble=0, imbalance=21, exposed=4, sums=0)
        self.assertEqual(analysis.unmatched_waits, 0)
        for step in (first, second, server):
            self.assertEqual(elapsed(step), 100 * US)
        self.assertEqual(analysis.operations["forward core_attention"]["count"], 4)

    def test_waits_for_rows_of_ranks_that_divide_layers_are_a_part_of_their_own(self):
        analysis = self.analysis(two_parts(), tensor=2)
        # The gather, to 30 and from there; the loss within its operation, to 73 and from there; a sum over ranks.
        self.expect(analysis.steps[0][0], imbalance=18 + 2, tensor=10 + 7, exposed=0, sums=2, compute=10 + 20, copies=1,
                    issues=1 + 1 + 1 + 1, gaps=20 + 5 + 1, other=0, bubble=0, hidden=1, idle=39)
        # Rank 0 was never late.
        self.expect(analysis.steps[1][0], imbalance=0, tensor=5 + 6 + 3, exposed=0, sums=0, idle=14, hidden=4)
        self.assertEqual([total["bytes"] for total in analysis.totals], [24, 24])
        self.assertEqual(analysis.exchanges["forward gather_rows for pre_attention", 0, 2],
                         {"exposed_ns": 15 * US, "imbalance_ns": 18 * US, "bytes": 16})
        self.assertEqual(analysis.operations["forward loss"], {"count": 1, "flops": 0, "rank_ns": [20 * US, 0]})
        for step in (steps[0] for steps in analysis.steps):
            self.assertEqual(elapsed(step), 100 * US)

    def test_the_part_of_divided_layers_is_shown_where_there_are_some(self):
        report = distca_trace.Report(self.analysis(two_parts(), tensor=2))
        text, made = report.text(), report.json()
        self.assertIn("idle = imbalance + exposed + tensor + sums + other\n", text)
        lines = [line.split() for line in text.splitlines()]
        self.assertIn("0 worker, tensor 0 0.10 0.03 0.00 0.03 0.04 39.0 % 0.02 0.00 0.02 0.00 0.00 0.00 24 B".split(), lines)
        self.assertIn(["1", "server,", "tensor", "1"], [line[:4] for line in lines])
        self.assertEqual((made["tensor"], [rank["tensor"] for rank in made["ranks"]]), (2, [0, 1]))
        self.assertEqual(made["ranks"][0]["total"]["parts"]["tensor_ns"], 17 * US)
        report = distca_trace.Report(self.analysis(two_parts()))
        self.assertNotIn("tensor", report.text() + json.dumps(report.json()))
        stages = distca_trace.Report(self.analysis(two_stages(), 3, (0, 1), tensor=2)).text()
        self.assertIn("\n1 worker, stage 1, tensor 1 ", stages)
        self.assertIn("\n2 server, tensor 0 ", stages)
        self.assertIn("idle = bubble + imbalance + exposed + tensor + sums + other\n", stages)

    def test_a_tick_ends_with_its_last_operation_on_any_rank(self):
        ticks = self.analysis(two_stages(), 3, (0, 1)).ticks
        self.assertEqual(ticks, [
            {"tick": 0, "passes": ["forward"], "stages": [0], "length_ns": 50 * US, "ideal_ns": 35 * US},  # linear
            {"tick": 1, "passes": ["forward"], "stages": [1], "length_ns": 48 * US, "ideal_ns": 33 * US}])
        events = two_stages()
        for one in events:
            if one["cat"] == "compute" and one["args"].get("tick") == 1 and one["ts"] == 52:
                one["ts"], one["dur"] = 44, 34
        # 6 us of the second tick were over before, 2 us in the mean of three ranks.
        self.assertEqual([tick["length_ns"] for tick in self.analysis(events, 3, (0, 1)).ticks], [48 * US, 50 * US])

    def test_the_ideal_length_of_a_tick_is_at_least_the_mean_of_what_was_computed(self):
        events = two_stages()
        events.append(of_tick("compute", "backward core_attention", 1, 50, 100, 2))
        self.assertEqual(self.analysis(events, 3, (0, 1)).ticks[1], {
            "tick": 1, "passes": ["forward", "backward"], "stages": [1], "length_ns": 50 * US,
            "ideal_ns": (26 + 9 + 9 + 7 + 50) * US // 3})

    def test_rows_of_ticks_are_of_pipelines_alone(self):
        report = distca_trace.Report(self.analysis(two_stages(), 3, (0, 1)))
        lines = [line.split() for line in report.text().splitlines()]
        self.assertIn("2 forward ticks, 0 backward ticks of 2 stages, 1 micro-batch".split(), lines)
        self.assertIn("0 forward 1 of 2 0.05 0.03 1.43".split(), lines)
        self.assertIn("all 1.00 of 2 0.10 0.07 1.44".split(), lines)
        self.assertIn("1 worker, stage 1 0.10 0.05".split(), [line[:6] for line in lines])
        self.assertIn("idle = bubble + imbalance + exposed + sums + other", report.text())
        made = report.json()
        self.assertEqual((made["stages"], len(made["ticks"])), (2, 2))
        self.assertEqual([rank.get("stage") for rank in made["ranks"]], [0, 1, None])
        self.assertEqual(made["ranks"][0]["total"]["parts"]["bubble_ns"], 25 * US)
        for stages in ((), (0, 0, 0)):
            report = distca_trace.Report(self.analysis(two_stages(), 3, stages))
            text, made = report.text(), report.json()
            self.assertNotIn("bubble", text + json.dumps(made))
            self.assertNotIn("tick", text + json.dumps(made))

    def test_every_nanosecond_survives(self):
        times = [1]
        while times[-1] < 8e14:  # up to a month, where a double of microseconds still has the nanosecond
            times.append(times[-1] * 3 + 7)
        lines = [event("compute", "x", ns / 1e3, ns / 1e3) for ns in times]
        for ns, line in zip(times, lines):
            line["dur"] = ns % 1001 / 1e3
            read = distca_trace_file.event_of(json.loads(json.dumps(line)))
            self.assertEqual((read.begin, read.end), (ns, ns + ns % 1001))

    def test_names_of_operations_leave_layer_nano_batch_and_part_out(self):
        def operation(name, **args):
            return distca_trace_file.event_of(event("compute", name, 0, 1, **args)).operation

        self.assertEqual(distca_trace_file.event_of(exchange("wait", 0, 1, [])).operation, "forward dispatch")
        self.assertEqual(operation("grad_reduce"), "grad_reduce")
        self.assertEqual(operation("forward layer 3 core_attention (part 12) of nano-batch 0", layer=3, nano_batch=0),
                         "forward core_attention")
        self.assertEqual(operation("backward core_attention (part 0) of exchange 2, layer step 1"), "backward core_attention")

    def test_ranks_with_other_steps_are_refused(self):
        events = two_ranks()
        steps = [one for one in events if one["cat"] == "step"]
        self.assertIn("rank 1 has 0 steps, not those of rank 0", self.refusal(file_of(
            [one for one in events if one is not steps[1]])))
        self.assertIn("rank 0 has 0 steps, at least one is needed", self.refusal(file_of([])))
        self.assertIn("a trace of no rank", self.refusal(file_of([], 0)))
        steps[1]["args"]["step"] = 2
        self.assertIn("rank 1 has 1 steps, not those of rank 0", self.refusal(file_of(events)))

    def test_what_is_no_json_is_refused_with_its_place(self):
        whole = file_of(two_ranks())
        self.assertEqual(self.refusal(whole), "taken")
        self.assertIn("byte 1 is not JSON", self.refusal("not json"))
        for damaged in (whole[:len(whole) // 2], whole.encode().replace(b"abc", b"a\xff"), "[" * 100_000, "[NaN"):
            self.assertRegex(self.refusal(damaged), r"byte \d+ is not JSON: ")

    def test_traces_of_other_programs_are_refused(self):
        for old, new, words in (('"program": "distca"', '"program": "else"', "another program"),
                                ('"overlap"', '"plan"', 'no "overlap"'),
                                ('"server"', '"boss"', '"role" is "boss"'),
                                ('"server"', '"server", "stage": -1', '"stage" is -1'),
                                ('"server"', '"server", "tensor": "1"', '"tensor" is "1"'),
                                ('"clock_drift": 0', '"clock_drift": []', '"clock_drift" is []')):
            self.assertIn(words, self.refusal(file_of(two_ranks()).replace(old, new, 1)))
        self.assertIn('no "otherData"', self.refusal('{"traceEvents":[]}'))
        self.assertRegex(self.refusal("[]"), r"`distca train --trace` wrote: expected an object")

    def test_a_damaged_event_is_named_with_what_is_wrong(self):
        for old, new, words in (('"cat": "compute"', '"cat": "sleep"', r'traceEvents\[5\]: .*"sleep"'),
                                ('"dur": 100', '"dur": -1', '"dur" is -1'), ('"ts": 0', '"ts": null', '"ts" is null'),
                                ('"ts": 0', '"ts": NaN', '"ts" is NaN'), ('"ts": 0', '"ts": true', '"ts" is true'),
                                ('"step": 1', '"step": 1.5', '"step" is 1.5'), ('"step": 1', '"steps": 1', 'no "step"'),
                                ('"ph": "X"', '"ph": "B"', '"ph" is "B"'), ('"args"', '"arg"', 'no "args"'),
                                ('"from": [1]', '"from": [-1]', '"from" is -1'),
                                ('"from": [1]', '"from": 1', '"from" is 1'), ('"flops": 7', '"flops": -7', '"flops" is -7'),
                                ('"pid": 0', '"pid": 9', "rank 9, .* 2 ranks"),
                                ('"name": "step 1"', '"name": {"ph": 3}', r'traceEvents\[0\]: "name" is '),
                                ('"traceEvents": [', '"traceEvents": [3, ', '"?traceEvents'),
                                ('"traceEvents": [', '"traceEvents": [{}, ', r'traceEvents\[0\]')):
            self.assertIn(old, file_of(two_ranks()))
            said = self.refusal(file_of(two_ranks()).replace(old, new, 1))
            self.assertRegex(said, f"not a trace that `distca train --trace` wrote: .*{words}")

    def test_the_table_and_its_json_show_these_figures(self):
        report = distca_trace.Report(self.analysis(two_ranks()))
        lines = [line.split() for line in report.text().splitlines()]
        self.assertIn("2 ranks, step 1, overlap within, commit abc; clocks agree to within 2 us".split(), lines)
        self.assertIn("0 worker 0.10 0.02 0.00 0.01 0.07 68.0 % 0.04 0.01 0.01 0.00 0.01 1000 B".split(), lines)
        self.assertIn("gradient sum 0.01 0.01 0 B".split(), lines)
        made = report.json()
        self.assertEqual([rank["role"] for rank in made["ranks"]], ["worker", "server"])
        self.assertEqual(made["ranks"][0]["total"]["waited_for_ns"], [0, 40 * US])
        self.assertAlmostEqual(made["lost_ms"], (200 - 17 - 48 - 20) / 2 * 1e-3)

    def test_tables_align_numbers_to_the_right(self):
        self.assertEqual(distca_trace_report.table(("a", "b", "c"), [["x", "9", "9 ms"], ["xy", "10", "-"]]),
                         "a    b  c\nx    9  9 ms\nxy  10  -\n")
        self.assertEqual([distca_trace_report.shown_bytes(count) for count in (1023, 1536, 1024**2 - 1)],
                         ["1023 B", "1.5 KiB", "1.0 MiB"])


if __name__ == "__main__":
    unittest.main()
