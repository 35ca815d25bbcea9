#!/usr/bin/env python3
"""`distca monitor` of runs that have ended and of files that grow: cli_monitor_test.py PROGRAM.

What it writes for TensorBoard, with the real package: python/tests/test_monitor.py.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
SECONDS = 300
STEPS = 100


def line_of(step, loss=2.5, **more):
    return json.dumps({
        "step": step, "train_steps": STEPS, "time": f"2026-11-23T02:{step // 60:02}:{step % 60:02}.000Z",
        "time_left_s": STEPS - step, "loss": loss, "grad_norm": 0.5, "lr": 1e-3, "imbalance_before": 1.5,
        "imbalance_after": 1.01, "tokens_per_s": 8192.0, "share_of_peak": 0.5, "tensor_bytes": [1 << 20], **more}) + "\n"


def shown(step, loss="2.500"):
    return (f"step {step:3}/100  loss {loss}  max/mean 1.50>1.01  8,192 tok/s  {(STEPS - step) // 60}:"
            f"{(STEPS - step) % 60:02} left  lr 1.00e-03  norm 0.5  50 % peak  memory 1.0 MiB")


class Monitor(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "run").mkdir()
        self.file = open(self.folder / "run/metrics.jsonl", "ab", buffering=0)
        self.addCleanup(self.file.close)

    def add(self, *lines):
        for line in lines:
            self.file.write(line.encode())

    def lock(self):
        """What a run holds while it writes."""
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def unlock(self):
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def monitor(self, *words, **environment):
        return subprocess.run([PROGRAM, "monitor", "run", *words], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, **environment}, timeout=SECONDS)

    def start(self, *words):
        monitor = subprocess.Popen([PROGRAM, "monitor", "run", *words], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.addCleanup(monitor.stdout.close)
        self.addCleanup(monitor.wait)
        self.addCleanup(monitor.kill)
        return monitor

    def end(self, monitor):
        """What is left of its output."""
        said, _ = monitor.communicate(timeout=SECONDS)
        self.assertEqual(monitor.returncode, 0)
        return said.splitlines()

    def test_a_run_that_has_ended_reads_as_it_was(self):
        self.add(*(line_of(step, **({"validation_loss": 2.75} if step == 7 else {})) for step in range(1, STEPS + 1)))
        result = self.monitor()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # A line every five seconds; a step took one. The guess after step 1 has its mark.
        steps = [1, 6, 7, *range(12, STEPS, 5), STEPS]
        wanted = [shown(step) for step in steps]
        wanted[0] = wanted[0].replace("1:39", "~1:39")
        wanted.insert(2, "step   7/100  validation loss 2.750")
        self.assertEqual(result.stdout.splitlines(), wanted)

    def test_a_run_that_ended_early_says_where(self):
        self.add(line_of(1), line_of(2)[:-9])  # its last line was never whole
        self.assertEqual(self.monitor().stdout.splitlines()[1:], ["the run ended after step 1 of 100"])
        os.truncate(self.folder / "run/metrics.jsonl", 0)
        self.assertEqual(self.monitor().stdout, "the run ended before its first step\n")

    def test_a_growing_file_is_followed_until_the_run_has_ended(self):
        self.lock()
        monitor = self.start()
        self.add(line_of(10))
        self.assertEqual(monitor.stdout.readline(), shown(10) + "\n")
        whole = line_of(20)
        self.add(whole[:40])
        time.sleep(0.5)
        self.add(whole[40:])
        self.assertEqual(monitor.stdout.readline(), shown(20) + "\n")
        self.assertIsNone(monitor.poll())
        # The run is lost and starts again, from an earlier step.
        self.unlock()
        time.sleep(1)
        self.lock()
        os.truncate(self.folder / "run/metrics.jsonl", len(line_of(10)))
        self.add(line_of(11, 1.5, time="2026-11-23T03:00:00.000Z"))
        self.assertEqual(monitor.stdout.readline(), "the run goes on with step 11\n")
        self.assertEqual(monitor.stdout.readline(), shown(11, "1.500") + "\n")
        self.add(line_of(STEPS))
        self.assertEqual(self.end(monitor), [shown(STEPS)])  # though the lock is held: weights are being saved

    def test_a_run_that_is_killed_ends_it(self):
        self.lock()
        monitor = self.start()
        self.add(line_of(10))
        self.assertEqual(monitor.stdout.readline(), shown(10) + "\n")
        time.sleep(0.5)
        self.unlock()
        self.assertEqual(self.end(monitor), ["the run ended after step 10 of 100"])

    def test_it_sleeps_while_nothing_happens(self):
        self.lock()
        self.add(line_of(1))

        def processor_s(asleep_s):
            monitor = self.start()
            monitor.stdout.readline()
            time.sleep(asleep_s)
            _, _, usage = self.signalled(monitor, signal.SIGTERM)
            return usage.ru_utime + usage.ru_stime

        start_s = processor_s(0)
        self.assertLess(processor_s(3), start_s + 0.5)

    def signalled(self, monitor, number):
        monitor.send_signal(number)
        pid, status, usage = os.wait4(monitor.pid, 0)
        monitor.returncode = os.waitstatus_to_exitcode(status)
        return pid, monitor.returncode, usage

    def test_ctrl_c_ends_it_as_a_signal_does(self):
        self.lock()
        monitor = self.start()
        self.add(line_of(1))
        monitor.stdout.readline()
        self.assertEqual(self.signalled(monitor, signal.SIGINT)[1], -signal.SIGINT)

    def test_a_reader_that_goes_away_ends_it(self):
        self.lock()
        monitor = self.start()
        self.add(line_of(1))
        monitor.stdout.readline()
        monitor.stdout.close()
        self.add(line_of(20))
        self.assertEqual(monitor.wait(SECONDS), -signal.SIGPIPE)

    def test_on_a_terminal_a_line_replaces_the_one_before(self):
        self.add(*(line_of(step, **({"validation_loss": 2.75} if step == 7 else {})) for step in range(1, STEPS + 1)))
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        subprocess.run([PROGRAM, "monitor", "run"], cwd=self.folder, stdout=theirs, timeout=SECONDS, check=True,
                       env={**os.environ, "TERM": "xterm"})
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 1 << 16):
                said += more
        except OSError:  # all is read
            pass
        lines = said.decode().replace("\r\n", "\n").split("\n")
        visible = [re.split("\r\x1b\\[K", line)[-1] for line in lines if line]
        self.assertEqual(visible, ["step   7/100  validation loss 2.750", shown(STEPS)[:shown(STEPS).index("  lr")]])

    def test_output_that_does_not_arrive_is_a_failure(self):
        self.add(line_of(STEPS))
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "monitor", "run"], cwd=self.folder, stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=SECONDS)
        self.assertEqual((result.returncode, result.stderr), (1, "distca: error: stdout: No space left on device\n"))

    def refused(self, message, *words, code=2, **environment):
        result = self.monitor(*words, **environment)
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertEqual(result.stderr, f"distca: error: {message}\n")

    def test_a_line_of_no_run_is_refused(self):
        self.add("{}\n")
        self.refused("run/metrics.jsonl line 1: step is missing", "--tensorboard", "events")
        self.assertFalse((self.folder / "events").exists())

    def test_without_the_package_tensorboard_it_says_so_before_anything_is_shown(self):
        self.add(line_of(STEPS))
        (self.folder / "modules").mkdir()
        (self.folder / "modules/tensorboard.py").write_text("raise ImportError\n")
        result = self.monitor("--tensorboard", "events", PYTHONPATH=str(self.folder / "modules"))
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, r"^distca: error: .* has no package tensorboard: name a Python that has it with "
                                        r"DISTCA_PYTHON, such as .*pip install tensorboard`\n$")
        self.assertFalse((self.folder / "events").exists())
        self.refused("distca-tensorboard ended before its work was done: exit code 1", "--tensorboard", "events", code=1,
                     DISTCA_PYTHON="false")


if __name__ == "__main__":
    unittest.main()
