#!/usr/bin/env python3
"""How many steps the demo trains: what scripts/demo_steps.py chooses, and with which words scripts/demo.sh trains.

`distca` is a stand-in whose steps take as long as a test says, so the speed of this machine is no matter.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

from run_command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import demo_steps

# It writes down its words and, as `train`, the metrics of as many steps as it is told.
STAND_IN = """#!/usr/bin/env python3
import json, os, pathlib, sys
words = sys.argv[1:]
with open(os.environ["SAID"], "a") as said:
    said.write(json.dumps(words) + "\\n")
settings = dict(word.split("=", 1) for word in words if "=" in word)  # the last one holds, as for distca
if words[0] == "train" and "--dry-run" not in words:
    if settings.get("model.head_dim") == "7":
        sys.exit("distca: error: model.head_dim = 7: a multiple of 8")
    run = pathlib.Path(settings.get("train.output_dir", "runs/demo"))
    run.mkdir(parents=True)
    lines = [{"step_s": 10 * float(os.environ["STEP_S"])}] + [{"step_s": float(os.environ["STEP_S"])}] * 2
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines[:int(os.environ.get("PROBED", 3))]))
"""


class Choice(unittest.TestCase):
    def test_a_fast_machine_trains_all_steps_of_the_configuration(self):
        config = tomllib.loads((ROOT / "configs/demo.toml").read_text())
        self.assertEqual(demo_steps.choose(0.001, 0), config["train"]["steps"])
        self.assertEqual(demo_steps.VALIDATION_EVERY, config["train"]["validation_every"])
        self.assertEqual(config["train"]["steps"] // demo_steps.WARMUP_SHARE, config["optimizer"]["warmup_steps"])

    def test_the_steps_are_the_most_that_end_in_time(self):
        chosen = [demo_steps.choose(step_s / 10, 5) for step_s in range(1, 200)]
        self.assertEqual(chosen, sorted(chosen, reverse=True))
        self.assertEqual(chosen[14], 100)  # 1.5 s a step: 5 s and 110 such steps are 170 s
        self.assertEqual(chosen[39], 46)   # 4 s a step: 5 s and 46 + 3 * 2 steps are 213 s, one more 217 s
        self.assertEqual(chosen[-1], 8)     # 19.9 s a step: 5 s and 8 + 2 steps are 204 s, one more 224 s
        for tenths, steps in enumerate(chosen, 1):
            if steps > demo_steps.LEAST:
                self.assertLess(demo_steps.seconds(steps, tenths / 10, 5), 240)
            if steps < demo_steps.MOST:
                self.assertGreater(demo_steps.seconds(steps + 1, tenths / 10, 5), 216)

    def test_what_begins_slowly_has_less_time_for_steps(self):
        self.assertLess(demo_steps.choose(4, 65), demo_steps.choose(4, 5))


class Demo(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in ("scripts/demo.sh", "scripts/demo_steps.py", "configs/demo.toml"):
            (self.folder / path).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / path, self.folder / path)
        program = self.folder / "build/release/distca"
        program.parent.mkdir(parents=True)
        program.write_text(STAND_IN)
        program.chmod(0o755)

    def demo(self, *words, step_s, **environment):
        """(the trainings' words, what was said, the exit code) of a demo."""
        said = self.folder / "said"
        said.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        done = subprocess.run(
            ["scripts/demo.sh", *words], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "SAID": str(said), "STEP_S": str(step_s), **environment})
        calls = [json.loads(line) for line in said.read_text().splitlines()]
        return [call for call in calls if call[0] == "train"], done.stdout, done.returncode

    def steps_of(self, call):
        return int([word for word in call if word.startswith("train.steps=")][-1].split("=")[1])

    def test_a_fast_machine_trains_100_steps_after_a_probe_of_3_elsewhere(self):
        (probe, training), text, code = self.demo(step_s=0.01)
        self.assertEqual((code, self.steps_of(probe), self.steps_of(training)), (0, 3, 100), text)
        self.assertIn("\n100 steps, 20 of them to warm up, for a step takes 0.01 s on this machine", text)
        self.assertIn("optimizer.warmup_steps=20", training)
        output = [word for word in probe if word.startswith("train.output_dir=")][-1]
        self.assertFalse(pathlib.Path(output.split("=")[1]).exists(), "the probe's folder stays")
        self.assertFalse(output.startswith("train.output_dir=runs/"), output)

    def test_a_slow_machine_trains_fewer_and_says_so(self):
        (_, training), text, code = self.demo(step_s=8)
        steps = self.steps_of(training)
        self.assertEqual((code, steps), (0, 23), text)  # 23 + 2 * 2 steps are 216 s
        self.assertIn(f"\n{steps} steps, 4 of them to warm up, for a step takes 8 s on this machine", text)
        self.assertIn("; 100 would take ", text)
        self.assertIn(f"optimizer.warmup_steps={steps // 5}", training)

    def test_the_first_step_counts_where_there_was_time_for_no_other(self):
        (_, training), text, _ = self.demo(step_s=8, PROBED="1")
        self.assertIn("a step takes 80 s", text)
        self.assertEqual(self.steps_of(training), 1)

    def test_words_of_the_user_win(self):
        (training,), text, code = self.demo("train.steps=5", step_s=8)
        self.assertEqual((code, self.steps_of(training)), (0, 5), text)
        self.assertNotIn("on this machine", text)
        (dry_run,), _, _ = self.demo("--dry-run", step_s=8)
        self.assertEqual(dry_run[-1], "--dry-run")
        (probe, training), _, _ = self.demo("batch.nano_batches=2", "train.output_dir=runs/mine", "--trace", "trace.json",
                                            step_s=0.01)
        self.assertIn("batch.nano_batches=2", probe)
        self.assertNotIn("--trace", probe)
        self.assertEqual(training[-4:], ["batch.nano_batches=2", "train.output_dir=runs/mine", "--trace", "trace.json"])

    def test_a_probe_that_is_refused_ends_the_demo_with_its_line(self):
        trainings, text, code = self.demo("model.head_dim=7", step_s=1)
        self.assertEqual((len(trainings), code), (1, 1))
        self.assertTrue(text.endswith("distca: error: model.head_dim = 7: a multiple of 8\n"), text)


if __name__ == "__main__":
    unittest.main()
