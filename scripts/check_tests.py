#!/usr/bin/env python3
"""Every x_test.cc is named in the CMakeLists.txt of its folder or of one above: else it would never run."""

import pathlib
import re

from project import ROOT, files, report


def is_registered(path):
    """Whether a CMakeLists.txt of its folder or one above names it, as seen from there."""
    path = pathlib.Path(path)
    return any(re.search(rf"(?<![\w./]){re.escape(str(path.relative_to(folder)))}\b", (ROOT / folder / "CMakeLists.txt").read_text())
               for folder in path.parents if (ROOT / folder / "CMakeLists.txt").is_file())


report([f"{path}: in no CMakeLists.txt: it would never run" for path in files("*_test.cc") if not is_registered(path)])
