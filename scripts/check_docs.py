#!/usr/bin/env python3
"""Documents are true: links lead somewhere, and what the README tells people to type exists."""

import re

from project import ROOT, files, read, report

README_LINES = 200
DEMO_BY_LINE = 25


def links(path):
    """Faults: relative links whose target does not exist."""
    text = re.sub(r"```.*?```", "", read(path), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:|#", target):
            continue
        if not (ROOT / path).parent.joinpath(target.split("#")[0]).exists():
            yield f"{path}: link to {target}: no such file"


def commands(path, targets, verbs):
    """Faults: make targets, verbs and files in code blocks that do not exist."""
    for block in re.findall(r"```[a-z]*\n(.*?)```", read(path), flags=re.DOTALL):
        for target in re.findall(r"(?:^|[;&]\s*)make +([a-z-]+)", block, flags=re.MULTILINE):
            if target not in targets:
                yield f"{path}: make {target}: no such target in the Makefile"
        for verb in re.findall(r"(?:^|[\s/])distca +([a-z]+)(?= )", block, flags=re.MULTILINE):
            if verb not in verbs:
                yield f"{path}: distca {verb}: no such verb in cli/"
        for name in re.findall(r"(?<![\w./-])((?:configs|scripts|docs|bench)/[\w./-]*\w)", block):
            if not (ROOT / name).exists():
                yield f"{path}: {name}: no such file"


def readme():
    lines = read("README.md").splitlines()
    if len(lines) > README_LINES:
        yield f"README.md: {len(lines)} lines: at most {README_LINES}"
    if not any("make demo" in line for line in lines[:DEMO_BY_LINE]):
        yield f"README.md: make demo must be shown by line {DEMO_BY_LINE}"


def main():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    verbs = set(re.findall(r'add_subcommand\("([a-z]+)"', "".join(read(path) for path in files("cli/*.cc"))))
    faults = []
    for path in files("*.md"):
        faults += links(path)
    if (ROOT / "README.md").is_file():
        faults += [*readme(), *commands("README.md", targets, verbs)]
    else:
        faults.append("README.md: missing")
    report(faults)


main()
