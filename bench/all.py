#!/usr/bin/env python3
"""The benchmarks: those whose bars two cores can judge, by their shortest settings that decide (make bench); or everything
that README.md and docs/ cite (--figures).

    bench/all.py [--out FOLDER] [NAME...]
    bench/all.py --figures --out bench/results/0.1.0 [NAME...]

make bench prints a table of all bars with the figures, their intervals and what the machine's noise does to them (A/A),
and says which fell. FOLDER (build/bench) keeps each benchmark's lines and report. Exit code 1 if a bar is missed or a
benchmark fails. Nothing else may run meanwhile. As root, for wires with a limit.
"""

import argparse
import json
import os
import pathlib
import shlex
import sys
import time
from typing import NamedTuple

from report import report, run
from report_figures import Report
from wire import header

PYTHON = "build/python/tester/bin/python"  # scripts/test_python.sh makes it
LENGTHS = "distca/plan/testdata/lengths_pretrain.json"
SIMULATE = f"build/release/distca simulate --config configs/gpu_8_nodes.toml --lengths {LENGTHS}"
# Freed memory goes back to the system at once, so that a process's peak is that of its tensors.
ONE_DOCUMENT = ("env MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=65536 OMP_NUM_THREADS=1 TOKENS=4096 "
                f"{PYTHON} -m torch.distributed.run")
CANNOT = 77  # exit code of a benchmark that cannot run here


class Run(NamedTuple):
    command: str
    short: str | None = ""  # what make bench adds to the command; None: it does not run it
    figures: str | None = ""  # likewise for what is cited
    has_lines: bool = True  # else it prints text


RUNS = {
    "plan": Run("build/release/bench/plan"),
    "attention": Run(f"{PYTHON} bench/attention.py"),
    "training": Run("build/release/bench/training", "--only long-tailed --nano-batch-tokens 4096"),
    "pipeline": Run("build/release/bench/pipeline", "--only over"),
    "wire": Run(f"{sys.executable} bench/wire.py"),
    "python": Run(f"{PYTHON} bench/python.py", f"--tokens 4096 {LENGTHS}"),
    "context": Run(f"{PYTHON} bench/context.py", f"--ranks 4 {LENGTHS}", "--ranks 4"),
    "context_2": Run(f"{PYTHON} bench/context.py", None),
    "predicted": Run(f"{sys.executable} bench/predicted.py --program build/release/distca --data data/stdlib", None),
    **{f"long_document_{ranks}": Run(f"{ONE_DOCUMENT} --nproc-per-node {ranks} examples/python/long_document.py", None, "", False)
       for ranks in (1, 4)},
    "demo": Run("make demo", None, "", False),
    "causal_models": Run(f"{PYTHON} python/tests/causal_models.py", None, "", False),
    "find_best": Run(f"{SIMULATE} --find-best --gpus 64", None, "", False),
    "large_step": Run(f"{SIMULATE} --workers 4096 parallel.pipeline_model_parallel_size=4 batch.nano_batches=32 "
                      "batch.nano_batch_tokens=4194304", None, "", False),
    **{f"paper_{table}": Run(f"build/release/distca simulate --paper {table}{lengths}", None, "", False)
       for table, lengths in (("fig3a", ""), *((other, " --lengths distca/plan/testdata") for other in ("fig11", "table3", "table4")))},
}


def played(name, command, out):
    """(exit code, Report or None, text) of a run; out/NAME.jsonl has its lines."""
    kept = out / f"{name}.{'jsonl' if RUNS[name].has_lines else 'txt'}"
    with open(kept, "w") as file:
        code = run(shlex.split(command), file)
    text = kept.read_text()
    if code != 0 or not RUNS[name].has_lines:
        return code, None, text
    made = report([json.loads(line) for line in text.splitlines()])
    return code, made, made.text()


def page(name, command, minutes, text):
    head = header(name)
    return (f"# {name}\n{os.cpu_count()} virtual cores, {head['machine']}; {head['date']}; commit {head['commit']}; {minutes:.1f} "
            f"minutes.\n\n    {command}\n\n```text\n{text.strip()}\n```\n")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    options.add_argument("--figures", action="store_true", help="everything that is cited, by its full settings")
    options.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    asked = options.parse_args()
    if unknown := set(asked.names) - set(RUNS):
        options.error(f"no benchmark: {', '.join(sorted(unknown))}")
    asked.out.mkdir(parents=True, exist_ok=True)
    table, rows, failed, begun = Report("all"), [], [], time.monotonic()
    for name in asked.names or RUNS:
        words = RUNS[name].figures if asked.figures else RUNS[name].short
        if words is None:
            continue
        start, command = time.monotonic(), f"{RUNS[name].command} {words}".strip()
        code, made, text = played(name, command, asked.out)
        took_s = time.monotonic() - start
        print(f"{name}: {took_s:.0f} s{'' if code == 0 else f', exit code {code}'}", flush=True)
        if code not in (0, CANNOT):
            failed.append(f"{name} ended with exit code {code}")
        if code == 0:
            (asked.out / f"{name}.md").write_text(page(name, command, took_s / 60, text))
        if made:
            rows += made.bars
            table.verdicts += made.verdicts
    print()
    table.table("of|figure|reached|95 %|bar|A/A|verdict", rows)
    print(table.text())
    failed += [" | ".join(row.split("|")[:5]) for row in rows if row.endswith("|missed")]
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes; " + ("nothing fell" if not failed else "fell:"), *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
