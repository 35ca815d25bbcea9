"""`distca monitor --tensorboard`, read back by TensorBoard's own reader.

DISTCA_PROGRAM names the program that was built; without it, nothing here is tested. What it shows in the terminal:
tests/cli_monitor_test.py of the project.
"""

import fcntl
import json
import math
import os
import subprocess
import sys
import time

import pytest

PROGRAM = os.environ.get("DISTCA_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="DISTCA_PROGRAM names no built distca")
event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
record_loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

ENVIRONMENT = {**os.environ, "DISTCA_PYTHON": sys.executable}
SECONDS = 900


def line_of(step, hour=2, **more):
    line = {"step": step, "train_steps": 9, "time": f"2026-11-23T{hour:02}:00:{step:02}.000Z", "time_left_s": 1.0,
            "loss": 9.0 - step, "grad_norm": 0.5, "lr": 1e-3, "imbalance_before": 1.5, "imbalance_after": 1.25,
            "tokens_per_s": 8192.0, "step_s": 0.5, "share_of_peak": 0.75, "bytes_sent": 2**29, "plan_wait_s": 0.25,
            "tensor_bytes": [2**29, 2**30], "peak_bytes": [2**31, 2**30], "resident_bytes": [2**32, 2**30],
            "exchange": {"wait_ms": 125.0}, **more}
    return json.dumps(line) + "\n"


def monitor(folder, *, run="run", code=0):
    result = subprocess.run([PROGRAM, "monitor", folder / run, "--tensorboard", folder / "events"], env=ENVIRONMENT,
                            capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == code, result.stderr
    return result.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path


def write(folder, *lines):
    (folder / "run/metrics.jsonl").write_text("".join(lines))


def read(folder):
    """[name] (step, value) of each scalar, as TensorBoard shows them."""
    events = event_accumulator.EventAccumulator(str(folder / "events"), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def steps_written(folder):
    """Of all scalars in all files, also those that TensorBoard would forget."""
    return [event.step for path in sorted((folder / "events").iterdir())
            for event in record_loader.LegacyEventFileLoader(str(path)).Load() if event.HasField("summary")]


def test_every_figure_of_a_run_that_has_ended(folder):
    lines = [line_of(step) for step in range(1, 10)]
    lines[8] = line_of(9, loss=None, validation_loss=2.5, checkpoint_s=3.0, validation_loss_by_position=[
        {"begin": 0, "end": 1024, "loss": 2.75, "targets": 9}, {"begin": 1024, "end": 4096, "loss": 2.25, "targets": 9}])
    write(folder, *lines)
    monitor(folder)
    found = read(folder)
    last = found.pop("loss/train").pop()
    assert last[0] == 9 and math.isnan(last[1])
    assert found.pop("loss/validation") == [(9, 2.5)]
    assert found.pop("loss/validation_from_position_0") == [(9, 2.75)]
    assert found.pop("loss/validation_from_position_1024") == [(9, 2.25)]
    assert found.pop("waits/checkpoint_s") == [(9, 3.0)]
    assert {name: values[3] for name, values in found.items()} == {
        "optimizer/lr": (4, pytest.approx(1e-3)), "optimizer/grad_norm": (4, 0.5), "speed/tokens_per_s": (4, 8192),
        "speed/step_s": (4, 0.5), "speed/share_of_peak": (4, 0.75), "balance/max_mean_plain_packing": (4, 1.5),
        "balance/max_mean": (4, 1.25), "memory/tensors_gib": (4, 1), "memory/tensors_peak_gib": (4, 2),
        "memory/process_peak_gib": (4, 4), "waits/exchange_s": (4, 0.125), "waits/plan_s": (4, 0.25),
        "bytes/sent_gib": (4, 0.5)}
    assert all([step for step, _ in values] == list(range(1, 10)) for values in found.values())


def test_monitored_again_no_step_is_there_twice(folder):
    write(folder, *(line_of(step) for step in range(1, 5)))
    monitor(folder)
    (folder / "events/events.out.tfevents.1.host").write_bytes(b"")  # another program's
    write(folder, *(line_of(step) for step in range(1, 10)))
    monitor(folder)
    assert steps_written(folder) == list(range(1, 10))


def test_a_run_that_goes_on_from_an_earlier_step_replaces_the_later_ones(folder):
    write(folder, *(line_of(step) for step in range(1, 7)))
    with open(folder / "run/metrics.jsonl", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        follower = subprocess.Popen([PROGRAM, "monitor", folder / "run", "--tensorboard", folder / "events"],
                                    env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        while not ((folder / "events").exists() and read(folder).get("loss/train", [])[-1:] == [(6, 3)]):
            assert time.monotonic() - begin < SECONDS
            time.sleep(0.2)
        os.truncate(folder / "run/metrics.jsonl", sum(len(line_of(step)) for step in range(1, 5)))
        file.write("".join(line_of(step, hour=3, loss=0.5) for step in range(5, 10)).encode())
        file.flush()
        assert follower.wait(SECONDS) == 0
    assert read(folder)["loss/train"] == [(step, 9 - step if step < 5 else 0.5) for step in range(1, 10)]


def test_events_of_another_run_are_left_alone(folder):
    write(folder, line_of(9))
    monitor(folder)
    before = sorted((folder / "events").iterdir())
    (folder / "run").rename(folder / "other")
    assert monitor(folder, run="other", code=2) == (
        f"distca: error: {folder}/events: holds the events of another run: name another --tensorboard\n")
    assert sorted((folder / "events").iterdir()) == before


def test_a_folder_that_cannot_be_made_is_named(folder):
    write(folder, line_of(9))
    (folder / "events").write_text("")
    assert monitor(folder, code=1) == f"distca: error: {folder}/events: cannot be written: File exists\n"
