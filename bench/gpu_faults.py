#!/usr/bin/env python3
"""Kills, stops or slows one rank of a training and says what became of the others, for scripts/gpu_check.sh.

    bench/gpu_faults.py killed|stopped|slow:SECONDS FOLDER -- build/release/distca train --workers 2 ...

The command trains in FOLDER/run, with our launcher, for ever. Once it has done three steps, its last rank gets the fault:
a slow one stands still for so long, runs for a moment, and so on.
The last line is JSON: seconds from the fault to the end of all processes, the exit code, and the last line of the run.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

PATIENCE = float(os.environ.get("GPU_CHECK_PATIENCE", "1"))  # gpu_check's --patience
START_S = 50 * PATIENCE  # with END_S below the limit of whoever runs this, so that what it says is heard
END_S = 60 * PATIENCE


def processes(group):
    """Of this process group, those that live."""
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(status[2]) == group and status[0] not in "ZX":
                yield int(entry.name)


def ranks(group):
    """Rank -> its process, as the launcher has told them."""
    found = {}
    for pid in processes(group):
        with contextlib.suppress(OSError):
            for word in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word.startswith(b"DISTCA_RANK="):
                    found[int(word[12:])] = pid
    return found


def wait_for(what, limit_s, why):
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            sys.exit(f"gpu_faults: {why} within {limit_s:.0f} s")
        time.sleep(0.05)


def throttle(pid, seconds, over):
    with contextlib.suppress(ProcessLookupError):
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)


def strike(fault, pid, over):
    kind, _, seconds = fault.partition(":")
    if kind == "slow":
        threading.Thread(target=throttle, args=(pid, float(seconds), over), daemon=True).start()
    else:
        os.kill(pid, {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[kind])


def main(fault, folder, command):
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    metrics = folder / "run/metrics.jsonl"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu_faults: ended by SIGTERM"))  # so that the ranks end, too
    over = threading.Event()
    with open(folder / "output.txt", "w") as output:
        run = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_for(lambda: run.poll() is not None or metrics.exists() and metrics.read_text().count("\n") >= 3, START_S,
                     "no third step")
            if run.poll() is None:
                of_rank = ranks(run.pid)
                begin = time.monotonic()
                strike(fault, of_rank[max(of_rank)], over)
                wait_for(lambda: run.poll() is not None and not list(processes(run.pid)), END_S, "the ranks have not ended")
                seconds = time.monotonic() - begin
        finally:
            over.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    said = [line for line in (folder / "output.txt").read_text(errors="replace").splitlines() if line.strip()]
    print(*said[-30:], sep="\n")
    if "seconds" not in locals():
        sys.exit(f"gpu_faults: the training ended before its third step: {said[-1] if said else 'it said nothing'}")
    print(json.dumps({"seconds": seconds, "exit_code": run.returncode, "rank": max(of_rank), "last": said[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[sys.argv.index("--") + 1:])
