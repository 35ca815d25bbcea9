"""Writes TensorBoard's events for `distca monitor --tensorboard`, which starts this program and gives it lines of a
run's metrics.jsonl.

  python3 distca-tensorboard DIR RUN <LINES

It needs the package `tensorboard` and no PyTorch. DIR gets one new file of events, and loses those that this program
has made of RUN before, so that no step is there twice. Printed is a line of JSON when DIR is ready, and another when
all lines are written: {} or, if something is wrong, {"refused": words} or (the machine failed) {"failed": words}. A
process that was not started by somebody who reads these lines ends as quietly.
"""

import hashlib
import json
import os
import signal
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this program's folder: nothing there stands in for a package

NAMES = "events.out.tfevents.*.distca-*"  # of the files that this program makes
GIB = 2**30
# The scalar's name, and what it is of a line; KeyError: the line has none.
SCALARS = (
    ("loss/train", lambda line: line["loss"]),
    ("loss/validation", lambda line: line["validation_loss"]),
    ("optimizer/lr", lambda line: line["lr"]),
    ("optimizer/grad_norm", lambda line: line["grad_norm"]),
    ("speed/tokens_per_s", lambda line: line["tokens_per_s"]),
    ("speed/step_s", lambda line: line["step_s"]),
    ("speed/share_of_peak", lambda line: line["share_of_peak"]),
    ("balance/max_mean_plain_packing", lambda line: line["imbalance_before"]),
    ("balance/max_mean", lambda line: line["imbalance_after"]),
    ("memory/tensors_gib", lambda line: max(line["tensor_bytes"]) / GIB),
    ("memory/tensors_peak_gib", lambda line: max(line["peak_bytes"]) / GIB),
    ("memory/process_peak_gib", lambda line: max(line["resident_bytes"]) / GIB),
    ("waits/exchange_s", lambda line: line["exchange"]["wait_ms"] / 1e3),
    ("waits/plan_s", lambda line: line["plan_wait_s"]),
    ("waits/checkpoint_s", lambda line: line["checkpoint_s"]),
    ("bytes/sent_gib", lambda line: line["bytes_sent"] / GIB),
)


class Refused(Exception):
    """One line for the user."""


def scalars(line):
    """(name, value) of what a line has; NaN for what was not finite, which JSON has as null."""
    found = []
    for name, of in SCALARS:
        try:
            value = of(line)
        except KeyError:
            continue
        if name != "loss/train" or line.get("targets") != 0:  # without targets there is no loss
            found.append((name, value))
    for band in line.get("validation_loss_by_position", ()):
        found.append((f"loss/validation_from_position_{band['begin']}", band["loss"]))
    return [(name, float("nan") if value is None else value) for name, value in found]


class Events:
    """A file of events."""

    def __init__(self, folder, run):
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise Refused(f"{sys.executable} has no package tensorboard: name a Python that has it with DISTCA_PYTHON, such as "
                          "VENV/bin/python after `python3 -m venv VENV && VENV/bin/pip install tensorboard`") from None
        self.event, self.summary, self.start = Event, Summary, SessionLog(status=SessionLog.START)
        mark = f".distca-{hashlib.sha256(os.fsencode(os.path.realpath(run))).hexdigest()[:8]}"
        folder = Path(folder)
        older = list(folder.glob(NAMES))
        if any(path.suffix != mark for path in older):
            raise Refused(f"{folder}: holds the events of another run: name another --tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        for path in older:
            path.unlink()
        now = time.time()
        self.file = open(folder / f"events.out.tfevents.{int(now):010}.{socket.gethostname()}.{os.getpid()}{mark}", "wb")
        self.records = RecordWriter(self.file)
        self.last_step = None
        self.write(wall_time=now, file_version="brain.Event:2")

    def write(self, **fields):
        """At once, so that TensorBoard sees it."""
        self.records.write(self.event(**fields).SerializeToString())
        self.records.flush()

    def add(self, line):
        step, at = line["step"], datetime.fromisoformat(line["time"]).timestamp()
        if self.last_step is None or step <= self.last_step:
            # TensorBoard forgets what it has read of this step and later ones: the run went on from before them.
            self.write(wall_time=at, step=step, session_log=self.start)
        self.last_step = step
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in scalars(line)]
        self.write(wall_time=at, step=step, summary=self.summary(value=values))


def say(**words):
    print(json.dumps(words), flush=True)


def main(folder, run):
    try:
        events = Events(folder, run)
        say()
        for line in sys.stdin.buffer:
            events.add(json.loads(line))
        events.file.close()
    except Refused as error:
        say(refused=str(error))
    except OSError as error:
        say(failed=f"{folder}: cannot be written: {error.strerror}")
    else:
        say()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input ends it, when all is written
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main(*sys.argv[1:])
