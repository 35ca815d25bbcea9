#!/usr/bin/env python3
"""scripts/gpu_check.sh: its frame, and its stages with stand-ins: gpu_check_test.py [BUILD FOLDER] [unittest's words].

Without a build folder, the stages are left out. The stages A and D, whose parts `first` and other tests play too, are
rehearsed in `make test-full` alone."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from unittest import mock

import gpu_check
import gpu_stages
import gpu_training
from gpu_check import BOUNDS, ROOT, Missing, Stage

BUILD = sys.argv.pop(1) if len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).is_dir() else None
STAGES_LIMIT_S = 3000  # minutes on an idle machine; others may run beside it
SLEEPER = ("bash", "-c", "sleep 1000 & echo $!; wait")


class Frame(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.lines = []

    def stage(self, device="cpu", limit="600", **bounds):
        options = gpu_check.arguments(["A", "--device", device, "--out", str(self.folder / "out"), "--build",
                                       str(self.folder / "build"), "--limit", limit])
        return Stage("A", options, {name.replace("_", " "): bound for name, bound in bounds.items()}, self.lines.append)

    def verdicts(self):
        return [line.split()[0] for line in self.lines]

    def test_a_value_is_judged_by_its_bound(self):
        stage = self.stage("cuda", least={"at_least": 0.9}, most={"at_most": 1e-3})
        for name, value in (("least", 0.9), ("least", 0.8999), ("most", 1e-3), ("most", 2e-3), ("most", float("nan")), ("what", 1)):
            stage.figure(name, value)
        self.assertEqual(self.verdicts(), ["PASS", "FAIL", "PASS", "FAIL", "FAIL", "FAIL"])
        self.assertRegex(self.lines[1], r"^FAIL  A  least +0\.8999  at least 0\.9$")
        self.assertEqual(stage.failed(), 4)

    def test_a_stand_in_is_judged_only_where_its_bound_says_so(self):
        stage = self.stage("cpu", same={"at_most": 0, "stand_in": True}, fast={"at_least": 2.0})
        stage.figure("same", 1)
        stage.figure("fast", 1)
        self.assertEqual(self.verdicts(), ["FAIL", "SKIP"])

    def test_a_bound_without_a_figure_fails_unless_it_was_skipped(self):
        stage = self.stage("cuda", one={"at_most": 0}, other={"at_most": 0})
        stage.skip("one", "why")
        stage.end()
        self.assertEqual(self.verdicts(), ["SKIP", "FAIL"])
        self.assertIn("not measured", self.lines[1])

    def test_a_step_that_hangs_ends_with_all_that_it_started(self):
        stage = self.stage()
        start = time.monotonic()
        stage.check("hangs", lambda: stage.run("hangs", 1, SLEEPER))
        stage.check("is there", lambda: stage.run("echo", 300, ["echo", "hello"]).strip())
        self.assertLess(time.monotonic() - start, 500)
        self.assertEqual(self.verdicts(), ["FAIL", "PASS"])
        self.assertIn("not over after 1 s; ", self.lines[0])
        child = int(self.lines[0].split()[-1])
        for _ in range(6000):
            if not pathlib.Path(f"/proc/{child}").exists() or " Z " in pathlib.Path(f"/proc/{child}/stat").read_text():
                break
            time.sleep(0.05)
        else:
            self.fail(f"process {child} still runs")

    def test_a_stage_has_a_limit_of_its_own(self):
        stage = self.stage(limit="2")
        start = time.monotonic()
        for name in ("one", "two"):
            stage.check(name, lambda: stage.run(name, 100, SLEEPER))
        self.assertLess(time.monotonic() - start, 500)
        self.assertEqual(self.verdicts(), ["FAIL", "FAIL"])

    def test_a_part_that_hangs_leaves_its_lines_and_takes_no_time_of_others(self):
        stage = self.stage()
        start = time.monotonic()
        stage.part("first one", 1, lambda: stage.run("hangs", 100, SLEEPER))
        stage.part("next", 30, lambda: stage.run("echo", 10, ["echo", "hello"]).strip())
        self.assertLess(time.monotonic() - start, 90)  # and not the hundred that it was given
        self.assertEqual([line.split()[0] for line in self.lines], ["FAIL", "first", "PASS", "next:"])
        kept = [(self.folder / "out" / name).read_text() for name in ("A_1_first_one.txt", "A_2_next.txt")]
        self.assertRegex(kept[0], r"^FAIL  A  first one .*not over after 1 s; .*\nfirst one: \d+ s of at most 1 s\n$")
        self.assertRegex(kept[1], r"^PASS  A  next .*hello\nnext: \d+ s of at most 30 s\n$")

    def test_a_failure_says_why_in_one_line_and_hides_no_other(self):
        stage = self.stage()
        stage.check("fails", lambda: stage.run("fails", 300, ["bash", "-c", "echo first; echo last words; exit 3"]))
        stage.check("is not there", lambda: stage.run("is not there", 300, ["/nowhere/program"]))
        stage.check("is wrong", lambda: {}["key"])
        stage.check("is good", lambda: "yes")
        self.assertEqual(self.verdicts(), ["FAIL", "FAIL", "FAIL", "PASS"])
        self.assertIn("exit code 3: last words", self.lines[0])
        self.assertIn("cannot be started", self.lines[1])
        self.assertIn("KeyError: 'key'", self.lines[2])
        self.assertIn("first\nlast words", stage.log.read_text())

    def test_the_exit_code_says_whether_a_line_failed(self):
        words = ["A", "--device", "cpu", "--out", str(self.folder / "out"), "--build", str(self.folder / "build")]
        bounds = tomllib.loads(BOUNDS.read_text())["A"]

        def skips(stage):
            for name in bounds:
                stage.skip(name, "why")

        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(gpu_check.main(words, {"A": skips}), 0)
            self.assertEqual(gpu_check.main(words, {"A": lambda stage: None}), 1)
        self.assertIn(f"0 PASS, 0 FAIL, {len(bounds)} SKIP", said.getvalue())
        self.assertEqual((self.folder / "out/table_A_cpu.txt").read_text().splitlines()[-1],
                         f"0 PASS, {len(bounds)} FAIL, 0 SKIP, 0 SHOW")

    def test_a_wrong_word_is_refused(self):
        for words in ([], ["C"], ["A", "--device", "tpu"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                gpu_check.arguments(words)
            self.assertEqual(ended.exception.code, 2)

    def test_every_bound_says_why_it_is_what_it_is(self):
        stages = tomllib.loads(BOUNDS.read_text())
        self.assertEqual({*stages, "first"}, set(gpu_check.STAGES))
        for bounds in stages.values():
            for name, bound in bounds.items():
                self.assertTrue(bound["reason"] and ("at_least" in bound or "at_most" in bound), name)

    def test_losses_that_are_missing_are_within_no_bound(self):
        self.assertAlmostEqual(gpu_training.relative([1.0, 2.2], [1.0, 2.0]), 0.1)
        for got, want in (([1.0], [1.0, 2.0]), ([], [])):
            stage = self.stage(losses={"at_most": 1e9, "stand_in": True})
            stage.figure("losses", gpu_training.relative(got, want))
        self.assertEqual(self.verdicts(), ["FAIL", "FAIL"])

    def test_without_kernels_of_flash_attention_4_its_lines_are_skipped(self):
        with mock.patch.dict(os.environ, {"DISTCA_KERNELS": str(self.folder)}):
            gpu_stages.attention_of_flash4(self.stage("cuda"))
            self.assertEqual(self.verdicts(), ["SKIP", "SKIP"])
            self.assertIn("distca kernels build --head-dim 64", self.lines[0])
            kernels = self.folder / "fa4-sm_90-d64-bfloat16-g4"
            kernels.mkdir()
            (kernels / "manifest.json").write_text("{}")
            self.assertEqual(gpu_check.no_flash4(64), "")
            self.assertNotEqual(gpu_check.no_flash4(128), "")

    def test_a_program_whose_cases_are_all_skipped_says_why(self):
        stage = self.stage("cuda")
        reason = "no kernels of FlashAttention 4: kernels/causal.so is not the file that manifest.json describes: run ..."
        skipped = f"[ RUN      ] a.b/0\nfile.cc:136: Skipped\n{reason}\n\n[  SKIPPED ] a.b/0 (1 ms)\n"
        for said, why in ((skipped, f"skipped: {reason}"), ("[==========] 0 tests ran.\n", "no case matches a.b/*")):
            stage.run = lambda *arguments, **others: said
            with self.assertRaises(Missing) as missing:
                gpu_check.tests(stage, "program", "a.b/*", 1)
            self.assertEqual(str(missing.exception), why)

    def test_a_contest_without_flash_attention_4_keeps_its_other_figures(self):
        losses, rate = (f"32K-token documents{of}: {figure}" for of, figure in
                        (("", "first loss beside plain PyTorch's, relative"), ("", "tokens/s, times plain PyTorch's")))
        of_flash4 = [f"32K-token documents, FlashAttention 4: {figure}" for figure in gpu_training.FLASH4_FIGURES]
        stage = self.stage("cuda")
        stage.bounds = {losses: {"at_most": 1}, rate: {"at_least": 1}}
        step = {"loss": 1.0, "step_s": 1.0, "tokens": 65536}

        def trained(_, name, limit_s, *words, **others):
            if "attention.kernel=fa4" in words:
                raise Missing("no kernels")
            return [step] * 6

        stage.run = lambda *arguments, **others: "\n".join([json.dumps(step)] * 6)
        for why, verdict in (("", "FAIL"), ("there are none", "SKIP")):
            self.lines.clear()
            with mock.patch.object(gpu_training, "train", trained), mock.patch.object(gpu_training, "no_flash4", lambda _: why):
                gpu_training.contest(stage, "32K", 32768, ("ours", "rival", "flash4"))
            told = {" ".join(line.split()[2:]): line.split()[0] for line in self.lines}
            for figure in of_flash4:
                self.assertIn(verdict, [told[key] for key in told if key.startswith(figure)])
            for figure in (losses, rate):
                self.assertIn("PASS", [told[key] for key in told if key.startswith(figure)])

    def test_what_cannot_be_made_raises_in_one_line(self):
        with self.assertRaises(Missing) as missing:
            self.stage().run("false", 300, ["false"])
        self.assertEqual(str(missing.exception), "exit code 1: it printed nothing")


@unittest.skipIf(BUILD is None, "no build folder is named")
class Rehearsal(unittest.TestCase):
    def play(self, *stages):
        with tempfile.TemporaryDirectory() as out:
            ran = subprocess.run([ROOT / "scripts/gpu_check.sh", *stages, "--device", "cpu", "--build", BUILD, "--out", out,
                                  "--patience", "10"],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=STAGES_LIMIT_S)
            kept = {name: pathlib.Path(out, name).read_text() for name in sorted(os.listdir(out))}
        self.assertEqual(ran.returncode, 0, ran.stdout)
        table = ran.stdout[ran.stdout.rindex("\ngpu_check "):]
        self.assertNotIn("FAIL  ", table)
        for stage in stages:
            for name in gpu_check.bounds_of(stage):
                self.assertRegex(table, rf"(?m)^(PASS|SKIP)  {stage}  {re.escape(name)}")
        self.assertLessEqual(len(kept), 8, [*kept])  # what may be brought back from another machine
        print(table)
        return kept

    def test_kernels_and_lost_ranks(self):
        self.play("B", "E")

    def test_tests_and_trainings(self):
        self.play("A", "D")

    def test_first_leaves_a_file_of_each_part(self):
        kept = self.play("first")
        parts = {name: text for name, text in kept.items() if re.match(r"first_\d_", name)}
        self.assertEqual([name[8:-4] for name in parts], ["build", "operators", "shards", "losses", "step_time", "Python_operators"])
        for name, text in parts.items():
            self.assertRegex(text, r"(?m)^(PASS|SKIP|SHOW)  first  (.*\n)*.*: \d+ s of at most \d+ s\n$", name)


if __name__ == "__main__":
    unittest.main()
