#!/usr/bin/env python3
"""Files stay under 450 lines and functions under 60, unless listed here with a reason. Kernels are exempt."""

import re

from project import CPP_LITERALS, files, read, report

MAX_FILE = 450
MAX_FUNCTION = 60
EXEMPT_FOLDERS = ("distca/kernels/",)
# "path" or "path:function" -> why it may be longer.
EXCEPTIONS = {
    "distca/config/config_keys.cc:config_keys": "a table: one entry a key with its unit, default and reason",
    "tests/bad_input_runs.cc:bad_configs": "a table: a row a bad input",
    "tests/bad_input_runs.cc:bad_runs": "a table: a row a bad input",
}

SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def without_literals(text):
    """The same lines without strings, characters, comments and preprocessor lines."""
    text = CPP_LITERALS.sub(lambda match: "\n" * match[0].count("\n"), text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match[0].count("\n"), text,
                  flags=re.MULTILINE)


def functions(text):
    """(name, lines) of every function that lies in no other, its signature included."""
    text = without_literals(text)
    scopes, start, inside = [], 0, None  # open braces: is it a function's?; where the statement began
    for at, char in enumerate(text):
        if char == "{":
            head = text[start:at]
            # Everything within a function belongs to it; a brace after "=" initialises.
            is_function = inside is None and "(" in head and not SCOPE.search(head.split("(")[0]) and "=" not in \
                re.sub(r"operator\s*[=!<>+*-]+|[=!<>]=|\([^()]*\)", "", head)
            if is_function:
                name = re.search(r"([\w:~]+)\s*\(", head)
                inside = (len(scopes), name[1] if name else "?", start + len(head) - len(head.lstrip()))
            scopes.append(is_function)
        elif char == "}" and scopes:
            scopes.pop()
            if inside and len(scopes) == inside[0]:
                yield inside[1], text.count("\n", inside[2], at) + 1
                inside = None
        if inside is None and char in "{};":
            start = at + 1


def sizes():
    """(name, lines, how many it may have) of every file and function."""
    for path in files("*.h", "*.cc", "*.py"):
        if path.startswith(EXEMPT_FOLDERS):
            continue
        text = read(path)
        yield path, text.count("\n"), MAX_FILE
        if not path.endswith(".py"):
            for name, lines in functions(text):
                yield f"{path}:{name}", lines, MAX_FUNCTION


too_long = [(name, lines, limit) for name, lines, limit in sizes() if lines > limit]
report([f"{name}: {lines} lines: at most {limit}, or an entry with a reason in scripts/check_sizes.py"
        for name, lines, limit in too_long if name not in EXCEPTIONS] +
       [f"{name}: is no exception any more: remove it from scripts/check_sizes.py"
        for name in EXCEPTIONS.keys() - {name for name, *_ in too_long}])
