#!/usr/bin/env python3
"""A long training of the demo's model on two workers that meets what long trainings meet, beside one that nobody disturbs.

    tests/harness/long_run.py build/release/distca --steps 2000 --out runs/long
    tests/harness/long_run.py --draw runs/long > long_run.svg

As root, for the disk that fills is a tmpfs. Both train at the same time, on the same cores. On the way, a rank is killed,
a rank stops for a while, the disk fills, a rank stops for good, a rank is killed where --max-restarts starts all again,
and the run goes on with other numbers of workers, with two stages, and with two ranks that divide the layers. Prints a
table: what each event cost, and where losses differ. OUT/samples.jsonl keeps steps, memory and file descriptors over
time, OUT/events.jsonl the events; --draw needs matplotlib.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

from seeded import ROOT, Fault, Running, expect, succeed

DISK_MB = 600
SAMPLE_S = 10
POLL_S = 0.5
PAUSE_S = 30         # a rank that stops for a while: half of comm.timeout_s
FULL_S = 90          # for which the disk is full: some steps and saves
END_S = 180          # from a blow to the end of all ranks: comm.timeout_s, comm.grace_s, and a loaded machine
WAYS = {             # what a start says beside the demo's configuration
    "2 workers": ["--workers", "2"],
    "2 workers, --max-restarts 1": ["--workers", "2", "--max-restarts", "1"],
    "4 workers": ["--workers", "4"],
    "2 stages": ["--workers", "2", "parallel.pipeline_model_parallel_size=2"],
    "2 ranks that divide layers": ["--workers", "2", "parallel.tensor_model_parallel_size=2"],
}


def append(path, values):
    with open(path, "a") as file:
        file.write(json.dumps(values) + "\n")


def kept(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(run_folder):
    """Step -> its line. A full disk costs lines."""
    try:
        lines = (run_folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    except OSError:
        return {}
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return {line["step"]: line for line in found}


def steps_done(run_folder):
    """The last one whose line is written; the file is cut where a run goes on."""
    return max(steps(run_folder), default=0)


def use_of(process):
    """(resident bytes, open descriptors), or None of a process that ended."""
    try:
        resident = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir(f"/proc/{process}/fd"))
    except OSError:
        return None


class Watch:
    """Both trainings: waits for things, and writes a sample every SAMPLE_S meanwhile."""

    def __init__(self, out, straight, program, prefix, steps):
        self.out, self.straight, self.program, self.prefix, self.steps = out, straight, program, prefix, steps
        self.begun, self.next_sample = time.monotonic(), 0
        self.run_folder, self.running = out / "disk/run", None

    def now(self):
        return time.monotonic() - self.begun

    def words(self, run_folder, way, *more):
        return [self.program, "train", "--config", ROOT / "configs/demo.toml", f"data.prefix={self.prefix}", "batch.nano_batches=2",
                f"train.steps={self.steps}", f"optimizer.warmup_steps={self.steps // 50}",
                f"train.validation_every={max(1, self.steps // 30)}", f"checkpoint.every_steps={max(1, self.steps // 60)}",
                f"train.output_dir={run_folder}", *WAYS[way], *more]

    def ranks(self):
        return [process for process in self.running.processes() if process != self.running.process.pid]

    def sample(self):
        if self.now() < self.next_sample:
            return
        self.next_sample = self.now() + SAMPLE_S
        of = {}
        for name, running, folder in (("disturbed", self.running, self.run_folder),
                                      ("straight", self.straight, self.out / "straight")):
            uses = [use for use in map(use_of, running.processes() if running else []) if use]
            of[name] = {"steps": steps_done(folder), "resident_bytes": sum(use[0] for use in uses),
                        "descriptors": sum(use[1] for use in uses), "processes": len(uses)}
        append(self.out / "samples.jsonl", {"s": round(self.now(), 1), **of})

    def until(self, true, limit_s, awaited):
        end = self.now() + limit_s
        while not true():
            self.sample()
            expect(self.now() < end, f"not within {limit_s:.0f} s: {awaited}")
            time.sleep(POLL_S)

    def until_step(self, step):
        self.until(lambda: steps_done(self.run_folder) >= step or self.running.process.poll() is not None, 4 * 3600, f"step {step}")
        if steps_done(self.run_folder) < step:
            raise Fault(f"it ended before step {step}: {self.running.wait(END_S)}")

    def until_end(self, codes):
        """The last line that it printed on stderr."""
        self.until(lambda: not self.running.processes() or self.running.process.poll() is not None, END_S, "the end of all ranks")
        outcome = self.running.wait(END_S)
        expect(outcome.code in codes, f"not one of {codes}:", outcome)
        return (outcome.err.strip().splitlines() or [""])[-1]


# --- events: each does what happens, and returns what the run said


def kill_rank(watch):
    os.kill(watch.ranks()[-1], signal.SIGKILL)
    return watch.until_end({1})


def pause_rank(watch):
    rank, end = watch.ranks()[0], watch.now() + PAUSE_S
    os.kill(rank, signal.SIGSTOP)
    watch.until(lambda: watch.now() >= end, 2 * PAUSE_S, "the pause")
    os.kill(rank, signal.SIGCONT)


def fill_disk(watch):
    filler = watch.out / "disk/filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20) if os.statvfs(filler).f_bavail > 1 << 10 else bytes(1 << 10))
    end = watch.now() + FULL_S
    watch.until(lambda: watch.now() >= end, 2 * FULL_S, "the disk")
    filler.unlink()
    return os.pread(watch.running.files[1].fileno(), 1 << 20, 0).decode().strip().splitlines()[-1]


def stop_rank(watch):
    stopped = watch.ranks()[-1]
    os.kill(stopped, signal.SIGSTOP)
    return watch.until_end({1})


def kill_and_restart(watch):
    os.kill(watch.ranks()[-1], signal.SIGKILL)


def end_job(watch):
    watch.running.process.send_signal(signal.SIGTERM)
    return watch.until_end({0})


EVENTS = (  # after which share of the steps, name, what happens, how the run goes on (None: by itself)
    (0.10, "a rank is killed", kill_rank, "2 workers"),
    (0.20, f"a rank stops for {PAUSE_S} s", pause_rank, None),
    (0.30, f"the disk is full for {FULL_S} s", fill_disk, None),
    (0.40, "a rank stops for good", stop_rank, "2 workers, --max-restarts 1"),
    (0.50, "a rank is killed, --max-restarts 1", kill_and_restart, None),
    (0.60, "ended by SIGTERM, goes on with 4 workers", end_job, "4 workers"),
    (0.70, "ended by SIGTERM, goes on with 2 stages", end_job, "2 stages"),
    (0.80, "ended by SIGTERM, goes on with 2 ranks that divide layers", end_job, "2 ranks that divide layers"),
    (0.90, "ended by SIGTERM, goes on with 2 workers", end_job, "2 workers"),
)


def train(watch):
    """The disturbed training, event by event."""
    with contextlib.ExitStack() as stack:
        watch.running = stack.enter_context(Running(watch.words(watch.run_folder, "2 workers"), watch.out))
        for share, name, happen, way in EVENTS:
            watch.until_step(max(1, int(share * watch.steps)))
            done, begun = steps_done(watch.run_folder), watch.now()
            said = happen(watch)
            ended = watch.now()
            if happen is end_job:
                done = steps_done(watch.run_folder)  # with the step that was under way
            if way:
                stack.close()
                watch.running = stack.enter_context(Running(watch.words(watch.run_folder, way, "--resume"), watch.out))
            if way or happen is kill_and_restart:  # the file is cut
                watch.until(lambda: steps_done(watch.run_folder) <= done and watch.ranks(), END_S, "ranks that go on")
            watch.until_step(done + 1)
            event = {"step": done, "on_step": steps_done(watch.run_folder), "name": name, "s": round(begun, 1),
                     "ended_s": round(ended, 1), "on_s": round(watch.now(), 1), "said": said, "way": way}
            append(watch.out / "events.jsonl", event)
            print(json.dumps(event), flush=True)
        watch.until(lambda: watch.running.process.poll() is not None, 4 * 3600, "the end of the training")
        outcome = watch.running.wait(END_S)
        expect(outcome.code == 0, outcome)
        (watch.out / "said.txt").write_text(outcome.out + outcome.err)


def run(options):
    out, disk = options.out.resolve(), options.out.resolve() / "disk"
    expect(not out.exists(), out, "exists")
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "distca_long_run", disk], check=True)
    try:
        watch = Watch(out, None, options.program.resolve(), options.prefix.resolve(), options.steps)
        with Running(watch.words(out / "straight", "2 workers"), out) as straight:
            watch.straight = straight
            train(watch)
            watch.running = None
            watch.until(lambda: straight.process.poll() is not None, 4 * 3600, "the end of the undisturbed training")
            outcome = straight.wait(END_S)
            expect(outcome.code == 0, outcome)
        succeed([watch.program, "checkpoint", "check", watch.run_folder], out)
        (out / "metrics.jsonl").write_bytes((watch.run_folder / "metrics.jsonl").read_bytes())
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def show(out):
    """The table, from what was kept."""
    samples, events = kept(out / "samples.jsonl"), kept(out / "events.jsonl")
    got, want = steps(out), steps(out / "straight")
    missing = [step for step in want if step not in got]
    print(f"{len(want)} steps in {samples[-1]['s'] / 60:.0f} minutes, two trainings at once; {len(missing)} steps of the disturbed "
          f"one have no line{f', {missing[0]} to {missing[-1]}' if missing else ''}\n")
    print("| step | event | ended within, s | next line of metrics after, s | lost, s | it said |\n|---|---|---|---|---|---|")
    for event in events:
        step_s = statistics.median(line["step_s"] for step, line in got.items() if event["step"] - 20 < step <= event["step"])
        ended = f"{event['ended_s'] - event['s']:.1f}" if event["way"] else ""
        on = event["on_s"] - event["s"]
        lost = max(0, on - step_s * (event["on_step"] - event["step"]))
        said = re.sub(r"/\S*/", "", event["said"] or "").replace("|", "\\|")
        print(f"| {event['step']} | {event['name']} | {ended} | {on:.1f} | {lost:.1f} | {said} |")
    differ = [step for step in got if got[step]["loss"] != want[step]["loss"]]
    print(f"\nThe first loss that has other bits: step {differ[0] if differ else 'none'}")
    parts = [[step for step in got if low < step <= high] for low, high in zip([0, *(event["step"] for event in events)],
                                                                            [*(event["step"] for event in events), len(want)])]
    print("\n| steps | loss, disturbed | undisturbed | largest difference of one step |\n|---|---|---|---|")
    for part in parts:
        means = [statistics.mean(lines[step]["loss"] for step in part) for lines in (got, want)]
        most = max(abs(got[step]["loss"] - want[step]["loss"]) for step in part)
        print(f"| {part[0]} to {part[-1]} | {means[0]:.6f} | {means[1]:.6f} | {most:.2e} |")
    last = [step for step in got if "validation_loss" in got[step]][-1]
    print(f"\nValidation loss after step {last}: {got[last]['validation_loss']:.6f}, undisturbed "
          f"{want[last]['validation_loss']:.6f}")
    for name in ("disturbed", "straight"):
        of = [(sample["s"], sample[name]) for sample in samples if sample[name]["processes"] == 3]
        for when, some in (("first", of[len(of) // 20:len(of) // 10]), ("last", of[-len(of) // 10:])):
            resident, open_files = (statistics.median(use[key] for _, use in some) for key in ("resident_bytes", "descriptors"))
            print(f"{name}, {when} samples of 3 processes: {resident / 2**20:.0f} MiB resident, {open_files:.0f} descriptors")


def draw(out):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "distca", "font.size": 9}
    from matplotlib import pyplot
    samples, events = kept(out / "samples.jsonl"), kept(out / "events.jsonl")
    figure, panels = pyplot.subplots(4, 1, figsize=(9, 10), layout="constrained")
    for name, folder, colour, width in (("undisturbed", out / "straight", "#e69f00", 2.5), ("disturbed", out, "#0072b2", 0.8)):
        lines = steps(folder)
        panels[0].plot(list(lines), [line["loss"] for line in lines.values()], color=colour, linewidth=width, label=name)
        key = "straight" if name == "undisturbed" else "disturbed"
        minutes = [sample["s"] / 60 for sample in samples]
        for panel, value in zip(panels[1:], (lambda use: use["steps"], lambda use: use["resident_bytes"] / 2**30,
                                             lambda use: use["descriptors"])):
            panel.plot(minutes, [value(sample[key]) for sample in samples], color=colour, linewidth=1, label=name)
    panels[0].set(xlabel="step", ylabel="loss, nats a token", ylim=(1, 4))
    for panel, label in zip(panels[1:], ("steps done", "resident, GiB, all processes", "open descriptors, all processes")):
        panel.set(xlabel="minutes", ylabel=label)
    for number, event in enumerate(events, 1):
        panels[0].axvline(event["step"], color="#888888", linewidth=0.6)
        panels[0].annotate(str(number), (event["step"], 3.8), color="#444444")
        for panel in panels[1:]:
            panel.axvline(event["s"] / 60, color="#888888", linewidth=0.6)
    panels[0].legend(loc="lower left")
    named = "\n".join(f"{number}  {event['name']}" for number, event in enumerate(events, 1))
    figure.suptitle(named, x=0.05, ha="left", fontsize=9)
    figure.savefig(sys.stdout.buffer, format="svg", metadata={"Date": None})


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", nargs="?", type=pathlib.Path, help="build/release/distca")
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--prefix", type=pathlib.Path, default=ROOT / "data/stdlib", help="of the data set of make demo")
    options.add_argument("--out", type=pathlib.Path, help="a new folder")
    options.add_argument("--show", type=pathlib.Path, metavar="OUT", help="prints the table of an earlier one")
    options.add_argument("--draw", type=pathlib.Path, metavar="OUT", help="prints the picture of an earlier one, as SVG")
    options = options.parse_args()
    try:
        if options.draw:
            return draw(options.draw)
        if not options.show:
            run(options)
        show(options.show or options.out)
    except Fault as fault:
        sys.exit(f"FAILED: {fault}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
