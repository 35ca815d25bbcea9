#!/usr/bin/env python3
"""Every benchmark whose bars two cores can judge, with its shortest settings that decide: make bench.

    bench/all.py [--out FOLDER] [NAME...]

Prints a table of all bars with the figures, their intervals and what the machine's noise does to them (A/A), and says
which fell. FOLDER (build/bench) keeps each benchmark's lines and report. Exit code 1 if a bar is missed or a benchmark
fails. Nothing else may run meanwhile.
"""

import argparse
import json
import pathlib
import sys
import time

from report import report, run
from report_figures import Report

PYTHON = "build/python/tester/bin/python"  # scripts/test_python.sh makes it
RUNS = {
    "plan": ["build/release/bench/plan"],
    "attention": [PYTHON, "bench/attention.py"],
    "training": ["build/release/bench/training", "--only", "long-tailed"],
    "pipeline": ["build/release/bench/pipeline", "--only", "over"],
    "wire": [sys.executable, "bench/wire.py"],
    "python": [PYTHON, "bench/python.py", "--tokens", "4096"],
    "context": [PYTHON, "bench/context.py", "--ranks", "4"],
}
CANNOT = 77  # exit code of a benchmark that cannot run here


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    asked = options.parse_args()
    if unknown := set(asked.names) - set(RUNS):
        options.error(f"no benchmark: {', '.join(sorted(unknown))}")
    asked.out.mkdir(parents=True, exist_ok=True)
    table, rows, failed, begun = Report("all"), [], [], time.monotonic()
    for name in asked.names or RUNS:
        start, kept = time.monotonic(), asked.out / f"{name}.jsonl"
        with open(kept, "w") as file:
            code = run(RUNS[name], file)
        print(f"{name}: {time.monotonic() - start:.0f} s{'' if code == 0 else f', exit code {code}'}", flush=True)
        if code == 0:
            made = report([json.loads(line) for line in kept.read_text().splitlines()])
            (asked.out / f"{name}.txt").write_text(made.text() + "\n")
            rows += made.bars
            table.verdicts += made.verdicts
        elif code != CANNOT:
            failed.append(f"{name} ended with exit code {code}")
    print()
    table.table("of|figure|reached|95 %|bar|A/A|verdict", rows)
    print(table.text())
    failed += [" | ".join(row.split("|")[:5]) for row in rows if row.endswith("|missed")]
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes; " + ("nothing fell" if not failed else "fell:"), *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
