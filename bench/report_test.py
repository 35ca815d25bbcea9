#!/usr/bin/env python3
"""bench/report.py: intervals, verdicts, bars, tables, exit codes."""

import contextlib
import io
import itertools
import json
import os
import pathlib
import tempfile
import unittest

import report
import report_pipeline
import report_steps
from report_figures import Estimate, Figure, Report, estimate, figure_of, quotient, random_words, ratio

ROUNDS = 15


def judged(reached, bar, low, high):
    """A figure with a narrow interval, and its control's."""
    return Figure(Estimate(reached, reached - 0.001, reached + 0.001), Estimate(1, low, high), ROUNDS, bar).verdict()


def about(middle, spread=0, rounds=ROUNDS):
    return [middle + spread * (i % 3 - 1) for i in range(rounds)]


class Intervals(unittest.TestCase):
    def test_random_words_are_those_of_the_library(self):  # pinned in distca/base/random_test.cc, too
        self.assertEqual(list(itertools.islice(random_words(1, 2), 2)), [6851237923183208601, 4317682303100657501])

    def test_the_interval_is_as_it_has_always_been(self):
        for values, wanted in (([1.0, 1.3, 0.9, 1.1, 1.7, 1.2, 0.8], Estimate(1.1, 0.9, 1.3)),
                               ([1 + 0.01 * (i * 7 % 16) for i in range(16)], Estimate(1.0750000000000002, 1.04, 1.11)),
                               ([1 + 0.01 * (i * 7 % 16) for i in range(15)], Estimate(1.07, 1.04, 1.12))):
            self.assertEqual(estimate(values), wanted)

    def test_an_outlier_moves_neither_median_nor_interval(self):
        found = estimate([1.0, 1.01, 0.99] * 4 + [1.0, 1.0, 50])
        self.assertEqual(found.median, 1)
        self.assertGreaterEqual(found.low, 0.99)
        self.assertLessEqual(found.high, 1.01)

    def test_the_interval_widens_with_the_spread(self):
        narrow, wide = (estimate([1 + step * i for i in range(-7, 8)]) for step in (0.001, 0.01))
        self.assertLess(narrow.low, 1)
        self.assertGreater(narrow.high, 1)
        self.assertAlmostEqual(wide.high - wide.low, 10 * (narrow.high - narrow.low), 9)

    def test_ratios_are_taken_within_a_round(self):
        self.assertEqual(ratio([10, 20, 40], [5, 10, 20]), Estimate(2, 2, 2))
        self.assertEqual(quotient([8, 15], [4, 5]), [2, 3])
        for wrong in (lambda: estimate([]), lambda: quotient([1], [1, 2])):
            self.assertRaises(ValueError, wrong)


class Verdicts(unittest.TestCase):
    def test_a_bar_is_reached_or_missed_where_the_control_is_narrower(self):
        self.assertEqual(judged(0.85, 0.80, 0.99, 1.01), "reached")
        self.assertEqual(judged(0.75, 0.80, 0.99, 1.01), "missed")
        self.assertEqual(judged(0.75, None, 0.99, 1.01), "-")

    def test_a_margin_within_the_control_is_not_decidable(self):
        for reached, low, high in ((0.81, 0.98, 1.001), (0.79, 0.999, 1.02), (0.81, 0.98, 0.981)):  # the last off 1
            self.assertEqual(judged(reached, 0.80, low, high), "not decidable here")

    def test_a_bar_within_the_figures_own_interval_is_not_decidable(self):
        for own in (Estimate(0.85, 0.79, 0.851), Estimate(0.75, 0.749, 0.80)):
            self.assertEqual(Figure(own, Estimate(1, 0.99, 1.01), ROUNDS, 0.80).verdict(), "not decidable here")

    def test_fewer_than_15_rounds_decide_nothing(self):
        for reached, bar, verdict in itertools.product((0.5, 0.95), (0.80, None), ("not decidable here",)):
            few = Figure(Estimate(reached, reached, reached), Estimate(1, 1, 1), 14, bar)
            self.assertEqual(few.verdict(), verdict if bar else "-")

    def test_the_control_holds_the_noise_of_all_that_the_figure_is_made_of(self):
        # The kernel is steady; the limit beside it is 10 % off in its second turn of every other round.
        again = [110 if i % 2 == 0 else 100 for i in range(ROUNDS)]
        found = figure_of(quotient([80.0] * ROUNDS, [100.0] * ROUNDS), quotient([80.0] * ROUNDS, again), 0.79)
        self.assertAlmostEqual(found.reached.median, 0.8)
        self.assertAlmostEqual(found.control.high, 1.1)
        self.assertEqual((found.rounds, found.verdict()), (15, "not decidable here"))

    def test_the_tally_counts_every_judged_figure_once(self):
        out = Report("attention")
        for reached, bar in ((0.85, None), (0.85, 0.8), (0.86, 0.8), (0.75, 0.8), (0.801, 0.8)):
            out.judge(Figure(Estimate(reached, reached, reached), Estimate(1, 0.99, 1.01), ROUNDS, bar), "what")
        self.assertIn("2 of 4 bars reached, 1 missed, 1 not decidable here", out.text())
        self.assertEqual([row.rsplit("|", 1)[1] for row in out.bars], ["reached", "reached", "missed", "not decidable here"])

    def test_an_exact_bound_that_is_met_is_reached(self):
        out = Report("plan")
        self.assertEqual(out.judge_exact("plan_ms", 20, servers=512)["verdict"], "reached")
        self.assertEqual(out.judge_exact("plan_ms", 20.1, servers=512)["verdict"], "missed")
        self.assertEqual(out.verdicts, {"reached": 1, "missed": 1})
        self.assertEqual(out.bars, ["plan: |plan ms, 512|20.000|exact|20|none|reached", "plan: |plan ms, 512|20.100|exact|20|none|missed"])


class AttentionBars(unittest.TestCase):
    def test_shares_of_the_peak_depend_on_format_instruction_set_and_length(self):
        wanted = {("fp32", "avx512"): {256: None, 512: 0.72, 1024: None, 2048: 0.80, 8192: 0.80},
                  ("bf16", "avx512_bf16"): {512: 0.70, 4096: 0.75}, ("bf16", "avx512"): {2048: None},
                  ("fp32", "avx2"): {256: None, 512: 0.75, 8192: 0.75}, ("fp32", "portable"): {2048: None}}
        for (form, isa), lengths in wanted.items():
            for length, bar in lengths.items():
                self.assertEqual(Report("attention").bar("of_peak", format=form, isa=isa, length=length), bar, (isa, length))

    def test_torch_is_beaten_twice_on_avx512_machines_once_on_others_and_not_judged_with_amx(self):
        for length, avx512, amx, chosen, bar in ((512, True, False, True, 2), (8192, True, False, True, 2),
                                                 (512, False, False, True, 1), (256, True, False, True, None),
                                                 (2048, True, True, True, None), (2048, True, False, False, None)):
            self.assertEqual(Report("attention").bar("of_torch", length=length, avx512=avx512, amx=amx, chosen=chosen), bar)

    def test_shards_of_128_queries_are_judged_by_pass_and_group(self):
        for which, queries, group, bar in (("forward", 128, 4, 0.95), ("forward", 128, 1, 0.85), ("backward", 128, 4, 0.88),
                                           ("backward", 128, 1, 0.78), ("forward", 16, 4, None), ("forward", 128, 2, None)):
            self.assertEqual(Report("attention").bar("of_long", queries=queries, group=group, **{"pass": which}), bar)

    def test_threads_gain_what_the_loop_gains(self):
        self.assertEqual(Report("attention").bar("of_loop"), 0.95)


def planned(servers, plan_ms, metadata_ms):
    """The lines of bench/plan of one plan."""
    head = dict.fromkeys(("machine", "date", "commit", "build", "compiler", "torch"), "x")
    return [{"line": "header", "bench": "plan", "rounds": 1} | head,
            {"line": "released", "of": "w", "figures": {"max_over_mean": 1.05, "bytes": 2 << 20, "max_send_bytes": 2 << 20}},
            {"line": "plan", "of": "w", "way": "spread", "servers": servers, "plan_ms": plan_ms, "metadata_ms": metadata_ms,
             "figures": {"max_over_mean": 1.02, "bytes": 1 << 20, "max_send_bytes": 1 << 19}}]


class Plans(unittest.TestCase):
    def test_times_count_at_64_and_512_servers(self):
        for servers, plan_ms, metadata_ms, wanted in ((512, 20, 20, {"reached": 2}), (512, 21, 1, {"reached": 1, "missed": 1}),
                                                      (512, 1, 21, {"reached": 1, "missed": 1}), (64, 2, 3, {"missed": 1}),
                                                      (8, 99, 99, {})):
            self.assertEqual(report.report(planned(servers, plan_ms, metadata_ms)).verdicts, wanted)


def wire_lines(setting, ping_pong=1.0, again=None, dispatch=8, none=2):
    """The lines of bench/wire.py: steps of 1 s over an open wire and of `none` s. Exchanges of `dispatch` and of 5 ms
    may run under 10 ms of linear work and 20 ms of attention."""
    head = dict.fromkeys(("machine", "date", "commit", "build", "compiler", "torch"), "x")
    steps = {"none": none, "ping-pong": ping_pong, "ping-pong again": again or ping_pong, "open": 1}
    times = {"dispatch": dispatch, "combine": 5, "pre_attention": 4, "post_attention": 6, "core_attention": 20}
    phases = {f"{name}_{of}_ms": value for name in ("forward", "backward") for of, value in times.items()}
    arms = {arm: {"step_s": step_s, "bytes_sent": 1e6, "phases": phases} for arm, step_s in steps.items()}
    settings = {setting: {"mb_per_s": 25, "tokens": 3584}}
    return [{"line": "head", "bench": "wire", "rounds": ROUNDS, "settings": settings} | head,
            *[{"line": "round", "setting": setting, "arms": arms}] * ROUNDS]


class Wire(unittest.TestCase):
    def said(self, *setting, **what):
        return report.report(wire_lines(*setting, **what)).text()

    def test_ping_pong_may_take_five_percent_more_than_over_an_open_wire(self):
        for seconds, verdict in ((1.04, "reached"), (1.06, "missed")):
            self.assertIn(f"ping-pong / open: {seconds:.3f} ({seconds:.3f}-{seconds:.3f}), A/A 1.000-1.000, bar 1.05: {verdict}",
                          self.said("ping-pong", seconds))
        self.assertIn("not decidable here", self.said("ping-pong", 1.06, again=1.13))

    def test_a_step_is_not_judged_where_an_exchange_is_too_long_to_hide(self):
        self.assertIn("80 %\nping-pong / open: 1.060 (1.060-1.060), A/A 1.000-1.000, bar 1.05: missed", self.said("ping-pong", 1.06))
        said = self.said("ping-pong", 1.06, dispatch=8.1)
        self.assertIn("81 %\nping-pong / open: 1.060 (1.060-1.060), A/A 1.000-1.000, bar 1.05: not judged", said)
        self.assertNotIn("bars reached", said)

    def test_nothing_is_judged_where_none_takes_no_longer_than_open(self):
        said = self.said("counter-phase", 1.2, none=0.99)
        self.assertIn("not judged: none takes no longer than open", said)
        self.assertNotIn("bars reached", said)

    def test_an_exchange_is_held_against_the_shorter_of_what_it_may_run_under(self):
        phases = {f"{name}_{part}_ms": 10 for name in ("forward", "backward")
                  for part in ("pre_attention", "post_attention", "core_attention", "dispatch", "combine")}
        share = lambda **changed: report_steps.longest_share(phases | changed)  # noqa: E731
        self.assertEqual(share(), 1)
        self.assertEqual(share(backward_core_attention_ms=5), 2)
        self.assertEqual(share(forward_core_attention_ms=50, forward_combine_ms=30), 1.5)

    def test_counter_phase_may_leave_some_of_what_none_takes_longer(self):
        for seconds, verdict in ((1.29, "reached"), (1.31, "missed")):
            left = f"{seconds - 1:.3f}"
            self.assertIn(f"of what none is longer: {left} ({left}-{left}), A/A 0.000-0.000, bar 0.30: {verdict}",
                          self.said("counter-phase", seconds))


class Steps(unittest.TestCase):
    def idle(self, ours, again, control):
        return report_steps.judge_idle(Report("training"), ours, again, control)

    def test_idle_shares_are_compared_with_the_control_round_by_round(self):
        self.assertAlmostEqual(self.idle(about(0.05), about(0.05), about(0.04)).reached.median, 0.01)
        self.assertEqual(self.idle(about(0.05), about(0.05), about(0.04)).verdict(), "reached")
        self.assertEqual(self.idle(about(0.08), about(0.08), about(0.04)).verdict(), "missed")

    def test_idle_shares_decide_nothing_within_their_noise_or_from_few_rounds(self):
        few = [about(middle, 0, 14) for middle in (0.05, 0.05, 0.04)]
        for shares in ((about(0.07, 0.02), about(0.07, 0.02), about(0.04)), (about(0.05), about(0.09), about(0.04)), few):
            self.assertEqual(self.idle(*shares).verdict(), "not decidable here")

    def test_times_ours_says_who_is_faster_unless_ours_against_itself_differs_as_much(self):
        for rival, again, conclusion in ((1.2, 1.01, "ours is faster"), (0.8, 1.01, "the rival is faster"),
                                         (1.1, 1.2, "not decidable here")):
            figure, found = report_steps.times_ours(about(rival), about(1.0), about(again))
            self.assertEqual((figure.reached.median, found), (rival, conclusion))


class Program(unittest.TestCase):
    def run_report(self, script, *options):
        """What report.py answers to a program of these words: exit code, output."""
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            with contextlib.redirect_stdout(io.StringIO()) as said:
                code = report.main([option.format(folder=folder) for option in options] + [str(program)])
            self.kept = sorted(os.listdir(folder))
            return code, said.getvalue()

    def program(self, left):
        return "cat <<'E'\n" + "\n".join(map(json.dumps, wire_lines("counter-phase", 1 + left))) + "\nE"

    def test_the_exit_code_is_0_or_1_by_the_bars_and_else_the_programs_own(self):
        self.assertEqual(self.run_report(self.program(0.2))[0], 0)
        self.assertEqual(self.run_report(self.program(0.4))[0], 1)
        self.assertEqual(self.run_report(self.program(0.4) + "\nexit 77"), (77, ""))
        self.assertEqual(self.run_report("kill -9 $$")[0], 137)

    def test_out_keeps_the_lines_of_a_run_that_came_to_its_end(self):
        self.run_report(self.program(0.2), "--out", "{folder}/kept.jsonl")
        self.assertEqual(self.kept, ["kept.jsonl", "program"])
        self.run_report("exit 2", "--out", "{folder}/kept.jsonl")
        self.assertNotIn("kept.jsonl", self.kept)

    def test_tables_have_numbers_to_the_right(self):
        for markdown, text in ((False, "name    ms  verdict\na      9.5  -\nbb    10.5  reached"),
                               (True, "| name |   ms | verdict |\n| ---- | ---: | ------- |\n| a    |  9.5 | -       |\n"
                                      "| bb   | 10.5 | reached |")):
            out = Report("plan", markdown)
            out.table("name|ms|verdict", ["a|9.5|-", "bb|10.5|reached"])
            self.assertEqual(out.text(), text)



class Pipelines(unittest.TestCase):
    def reported(self, share=0.41, ours=3.0, idle=0.08, waits=2.9):
        model = dict.fromkeys(("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                               "num_key_value_heads", "head_dim"), 1)
        speeds = {"line": "speeds", "linear_ns": [1, 2], "attention_ns": [1, 2.5]}
        setting = {"line": "setting", "name": "attention 0.40", "judged": True, "model": model, "micro_batches": 4, "tokens": 1}
        plan = {"line": "plan", "linear_s": 1.7, "attention_s": 1.1, "ends_s": 0.05, "attention_share": share, "least_s": 3}
        figures = {"idle_share": idle, "core_idle_share": 0, "exchange_processor_s": 0.1, "computed_s": 2, "attention_s": 1}
        arms = {"aligned, whole even": ours, "aligned, whole even, again": ours, "1F1B, pairs": 3.6,
                "1F1B, single nano-batches": 3.3, "aligned, 1 outstanding": 2.9, "aligned, 2 outstanding": waits}
        rounds = [{"line": "round", "batch": 0, "arms": {name: {"s": s} | figures for name, s in arms.items()}}] * 15
        out = Report("pipeline")
        report_pipeline.pipeline(out, {"rounds": 15, "shown_rounds": 5}, [speeds, setting, plan, *rounds])
        return out

    def test_steps_are_judged_where_attention_has_its_share(self):
        self.assertEqual(self.reported().verdicts, {"reached": 4})
        self.assertIn("idle above the closed form (5.0 %), in points: 3.00", self.reported(idle=0.08).text())
        self.assertEqual(self.reported(ours=3.1).verdicts, {"reached": 3, "missed": 1})
        self.assertEqual(self.reported(idle=0.09).verdicts, {"reached": 3, "missed": 1})
        self.assertEqual(self.reported(waits=3.01).verdicts, {"reached": 3, "missed": 1})
        self.assertEqual(self.reported(share=0.39).verdicts, {})


if __name__ == "__main__":
    unittest.main()
