#!/usr/bin/env python3
"""No run of 12 code lines or more stands twice outside tests: what is equal is written once.

Of C++, Python and shell. Not counted: blank lines, comments, includes and imports, lines of closing brackets alone.
Indentation does not tell lines apart.
"""

import collections
import re

from project import TEST, files, read, report, without_comments

LEAST = 12
UNCOUNTED = re.compile(r"[\]})>;,]*|#\s*include\b.*|(import|from) .*|(fi|done|esac|;;)")


def counted(path, text):
    """[(line number, what stands there)] of the lines that count."""
    lines = ((number, line.strip()) for number, line in enumerate(without_comments(path, text).splitlines(), 1))
    return [(number, line) for number, line in lines if not UNCOUNTED.fullmatch(line)]


def equal_runs(sources):
    """(path, first line, last line, other path, its first line, lines that count) of each longest run of equal lines."""
    code = {path: counted(path, text) for path, text in sources.items()}
    places = collections.defaultdict(list)  # the lines of a run of LEAST -> where it begins
    for path, lines in code.items():
        for at in range(len(lines) - LEAST + 1):
            places[tuple(line for _, line in lines[at:at + LEAST])].append((path, at))

    def line(path, at):
        return code[path][at][1] if 0 <= at < len(code[path]) else None

    for same in places.values():
        for i, (path, at) in enumerate(same):
            for other, there in same[:i]:
                before = line(path, at - 1)
                if before is not None and before == line(other, there - 1):
                    continue  # part of a longer run
                length = LEAST
                while line(path, at + length) is not None and line(path, at + length) == line(other, there + length):
                    length += 1
                if path != other or there + length <= at:
                    yield path, code[path][at][0], code[path][at + length - 1][0], other, code[other][there][0], length


def self_test():
    """Twelve equal lines are found once however they are set, eleven are not."""
    lines = [f"value_{i} = {i};" for i in range(LEAST)]
    one = "#include <a>\nint x;\n" + "\n".join(lines) + "\nint y;\n"
    other = "\n".join(["int z;", *(f"  {line}  // why\n\n  }}\n" for line in lines), "int w;"])
    found = list(equal_runs({"one.cc": one, "other.cc": other}))
    assert found == [("other.cc", 2, 46, "one.cc", 3, LEAST)], f"check_duplicates.py finds {found}"
    assert not list(equal_runs({"one.cc": one, "other.cc": other.replace("value_5 ", "value_6 ")}))


self_test()
all_of_them = {path: read(path) for path in files("*.h", "*.cc", "*.py", "*.sh") if not TEST.search(path)}
report([f"{path}:{first}-{last}: {length} code lines are those of {other} from line {there} on: write them once"
        for path, first, last, other, there, length in equal_runs(all_of_them)])
