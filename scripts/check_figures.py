#!/usr/bin/env python3
"""Each number that README.md claims stands in a results file that is linked beside it, and was measured on one commit.

    scripts/check_figures.py COMMIT

A number's results are those that its paragraph links, or the paragraph before a table or a printed text. COMMIT must be
what they name, with no change of code since; what was measured on a machine that is not at hand, a GPU, names its own.
Prints the numbers that are found nowhere.
"""

import re
import subprocess
import sys

from project import ROOT, read, report

NUMBER = re.compile(r"(?<![\w.,-])(?:\d{1,3}(?:,\d{3})+|\d*\.?\d+)(?:e-?\d+)?(?![\w])")
NOT_CLAIMED = (  # what is no measurement
    r"`[^`]*`", r"\]\([^)]*\)", r"https?://\S+", r"arXiv \S+", r"PyTorch 2\.\S+ to \S+ ?\S*", r"Transformers \S+ to \S+",
    r"Megatron-Core \S+ to \S+", r"TorchTitan \S+", r"FlashAttention \d", r"\[FlashAttention\s+\d", r"One? H100", r"L\^2",
    r"8 x 131,072", r"\b\d worker", r"\b8 to\s+512\s+servers", r"2 layers, hidden size \d+", r"of \d[\d,]* tokens", r"fp\d+", r"95 %",
    r"15 interleaved", r"main\.\S+")
ELSEWHERE = re.compile(r"gpu_")  # results of a machine that is not at hand
CODE = ("distca", "cli", "python/distca", "python/planner_library.cc", "cmake", "CMakeLists.txt", "configs")


def plain(number):
    return number.replace(",", "").lstrip("0") or "0"


def numbers(text):
    return {plain(number) for number in NUMBER.findall(text)}


def main(commit):
    changed = subprocess.run(["git", "diff", "--stat", commit, "HEAD", "--", *CODE], cwd=ROOT, capture_output=True, text=True)
    faults = [f"since {commit} the code has changed:\n{changed.stdout}"] if changed.stdout else []
    faults += [changed.stderr] if changed.returncode else []
    used, count, results = set(), 0, set()
    for block in re.split(r"\n\s*\n", read("README.md")):
        own = set(re.findall(r"\]\((bench/results/[^)#\s]+\.md)", block))
        results = own or (results if block.startswith(("|", "    ")) else set())
        said = block
        for pattern in NOT_CLAIMED:
            said = re.sub(pattern, " ", said, flags=re.DOTALL)
        there = set().union(*(numbers(read(path)) for path in results))
        claimed = {number for number in NUMBER.findall(said)}
        count += len(claimed)
        faults += [f"README.md: {number} is in none of {', '.join(sorted(results)) or 'no linked results'}: {block[:60]!r}"
                   for number in sorted(claimed) if plain(number) not in there]
        used |= results if claimed else set()
    faults += [f"{path} does not name {commit}" for path in sorted(used) if not ELSEWHERE.search(path) and commit[:7] not in read(path)]
    print(f"{count} numbers in README.md, {len(used)} results files")
    report(faults)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
