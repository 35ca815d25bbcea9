#!/usr/bin/env python3
"""Comments of C++ are sentences with their subject first.

Faults, in all comments of *.h and *.cc: those that begin with What, Of, Whether, Who, Which, As, Those or The same; the word
"beside", which means place only and is also a name in code; and special values chained to a sentence ("; none: all",
"0: never"), which stand in a sentence of their own ("0 means never.").
"""

import re

from project import CPP_LITERALS, files, read, report

BEGINS = re.compile(r"(what|of|whether|who|which|as|those|the same)\b", re.IGNORECASE)
BESIDE = re.compile(r"\bbeside\b(?![`=])", re.IGNORECASE)
CHAINED = re.compile(r"(^|[;,:.(] )(none|null|nullptr|empty|negative|-1|0|1|\"\"): ")


def comments(path):
    """(line, text) of each comment; the lines of one that goes on are one text."""
    text, at, found = read(path), -1, []
    for match in CPP_LITERALS.finditer(text):
        if not match.group().startswith("//"):
            continue
        line = text.count("\n", 0, match.start()) + 1
        words = match.group().lstrip("/").strip()
        alone = not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        if found and alone and line == at + 1:
            found[-1][1] += " " + words
        else:
            found.append([line, words])
        at = line
    return found


def faults(path):
    for line, words in comments(path):
        if BEGINS.match(words):
            yield f"{path}:{line}: {words[:60]} (begins)"
        for name, pattern in (("beside", BESIDE), ("chained", CHAINED)):
            for match in pattern.finditer(words):
                yield f"{path}:{line}: ...{words[max(match.start() - 30, 0):match.end() + 20]} ({name})"


report([fault for path in files("*.cc", "*.h") for fault in faults(path)])
