#!/usr/bin/env python3
"""Lines of code by room: blank lines and comments do not count; sources apart from tests.

  count_lines.py                    of the last commit
  count_lines.py COMMIT             of another one
  count_lines.py COMMIT COMMIT      of both, and the difference

Code is C++, Python, CMake and shell. Tests are *_test.*, *_testing.* and *_test_child.*, files and folders called
test_*, and all of tests/ and python/tests/. Asked of git: files that no commit has do not count.
"""

import collections
import io
import subprocess
import sys
import tarfile

from project import LANGUAGES, ROOT, TEST, without_comments


def files_of(commit):
    """(path, text) of every source file of the commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(tuple(LANGUAGES)):
                yield member.name, archive.extractfile(member).read().decode()


def code_lines(path, text):
    return sum(1 for line in without_comments(path, text).splitlines() if line.strip())


def room_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "distca" and len(parts) > 2 else parts[0] if len(parts) > 1 else "."


def count(commit):
    """room -> [lines of sources, lines of tests]"""
    rooms = collections.defaultdict(lambda: [0, 0])
    for path, text in files_of(commit):
        lines = code_lines(path, text)
        for name in (room_of(path), "all"):
            rooms[name][bool(TEST.search(path))] += lines
    return rooms


commits = sys.argv[1:] or ["HEAD"]
if len(commits) > 2 or any(commit.startswith("-") for commit in commits):
    sys.exit(__doc__)
counts = [count(commit) for commit in commits]
columns = [f"{commit[:12]} {kind}" for commit in commits for kind in ("code", "tests")]
if len(commits) == 2:
    columns += ["more code", "more tests"]
print(f"{'':18}" + "".join(f"{column:>20}" for column in columns))
for name in sorted(set().union(*counts) - {"all"}) + ["all"]:
    figures = [figure for rooms in counts for figure in rooms[name]]
    shown = [f"{figure:,}" for figure in figures]
    if len(commits) == 2:
        shown += [f"{figures[2 + i] - figures[i]:+,}" for i in range(2)]
    print(f"{name:18}" + "".join(f"{figure:>20}" for figure in shown))
