#!/usr/bin/env python3
"""Medians, intervals, verdicts and tables of what a benchmark measured.

  bench/report.py build/release/bench/plan [its options]                     runs it, then reports
  bench/report.py --out FILE.jsonl .venv/bin/python bench/attention.py       keeps the lines, too
  bench/report.py FILE.jsonl                                                 reports kept ones

A benchmark writes a JSON object a line: a header with machine, date, build and settings, then a line a round or a
measured row (bench/main.h). Exit code: the benchmark's own if that is not 0 (77: it cannot run here); else 1 if a bar
of bench/bars.toml is missed, else 0. Python 3.11 or newer.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import report_context
import report_pipeline
import report_predicted
import report_python
import report_steps
import report_tables
from report_figures import Report


def report(lines, markdown=False):
    """The Report of a run's lines."""
    head, *measured = lines
    made = Report(head["bench"], markdown)
    made.say("{bench}: {machine}; {date}; commit {commit}, {build} build, {compiler}".format_map(head)
             + (f", PyTorch {head['torch']}" if head["torch"] else ""))
    rooms = (report_tables, report_steps, report_pipeline, report_predicted, report_python, report_context)
    tables = next(module for module in rooms if hasattr(module, head["bench"]))
    getattr(tables, head["bench"])(made, head, measured)
    return made


def run(command, kept):
    """The benchmark's exit code; its lines are in the file `kept`, which nobody reads before the end: nothing else runs
    while it measures."""
    with subprocess.Popen(command, stdout=kept) as program:
        for number in (signal.SIGINT, signal.SIGTERM):  # it clears up, and we wait for that
            signal.signal(number, lambda *_: program.terminate())
        code = program.wait()
    return code if code >= 0 else 128 - code


def show(text, name, markdown):
    """Prints the report of a benchmark's output; the exit code."""
    if not text.startswith("{"):  # --help
        print(text, end="")
        return 0
    try:
        made = report([json.loads(line) for line in text.splitlines()], markdown)
    except (ValueError, LookupError, StopIteration) as error:
        raise OSError(f"{name} does not hold a benchmark's lines: {error!r}") from error
    print(made.text())
    return 1 if made.verdicts["missed"] else 0


def main(words):
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--markdown", action="store_true", help="tables in Markdown")
    options.add_argument("--out", metavar="FILE.jsonl", help="keeps the lines of the benchmark that is run")
    options.add_argument("what", help="a benchmark's program, or a file of its lines that ends with .jsonl")
    options.add_argument("options", nargs=argparse.REMAINDER, help="of the benchmark")
    asked = options.parse_args(words)
    if asked.what.endswith(".jsonl"):
        return show(pathlib.Path(asked.what).read_text(), asked.what, asked.markdown)
    # Opened first: a path that cannot be written is refused before minutes pass. FILE is there when it is whole.
    kept = f"{asked.out}.part" if asked.out else tempfile.mkstemp(".jsonl")[1]
    with open(kept, "w") as file:
        code = run([asked.what, *asked.options], file)
    if asked.out and code == 0:
        os.replace(kept, asked.out)
    code = code or show(pathlib.Path(asked.out or kept).read_text(), kept, asked.markdown)
    if not asked.out:  # where it could not be shown, it stays, and the error names it
        os.remove(kept)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as error:
        print(f"bench/report.py: error: {error}", file=sys.stderr)
        sys.exit(2)
