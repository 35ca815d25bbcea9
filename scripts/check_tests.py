#!/usr/bin/env python3
"""Every x_test.cc is named in the CMakeLists.txt of its folder or of one above: else it would never run."""

import re

from project import ROOT, files, report


def is_registered(path):
    """Whether a CMakeLists.txt of its folder or one above names it, as seen from there."""
    for folder in (ROOT / path).parents:
        lists = folder / "CMakeLists.txt"
        inside = str((ROOT / path).relative_to(folder))
        if lists.is_file() and re.search(rf"(?<![\w./]){re.escape(inside)}\b", lists.read_text()):
            return True
        if folder == ROOT:
            return False


def main():
    report([f"{path}: in no CMakeLists.txt: it would never run"
            for path in files("*_test.cc") if not is_registered(path)])


main()
