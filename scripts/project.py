"""What the checks share: the project's files and how a check reports."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of C++: strings, characters and comments, whichever begins first.
CPP_LITERALS = re.compile(
    r'R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z])\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/',
    re.DOTALL)


def files(*patterns):
    """Paths, relative to the root, of the files that belong to the project and match one of the git patterns."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(listed.splitlines()) if (ROOT / path).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def report(faults):
    """Prints the faults, one a line, and ends the check."""
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)
