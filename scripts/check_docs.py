#!/usr/bin/env python3
"""Documents are true: links lead somewhere, what they tell people to type exists, public headers open with examples. The
project stands alone: its sources name no document and no folder that is not in it."""

import re

import test_matrix
from project import ROOT, files, read, report, tried

README_LINES = 100
DEMO_BY_LINE = 25
EXAMPLE_LINES = 40
SOURCES = ("*.h", "*.cc", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt", "*.toml", "*.sbatch", "Makefile", ".ci/*")
FILE_ENDINGS = ("safetensors", "jsonl", "json", "toml", "bin", "idx", "cc", "h", "py", "sh", "md")


def links(path):
    """Faults: relative links whose target does not exist."""
    text = re.sub(r"```.*?```", "", read(path), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:|#", target):
            continue
        if not (ROOT / path).parent.joinpath(target.split("#")[0]).exists():
            yield f"{path}: link to {target}: no such file"


def typed(path):
    """The lines of fenced and indented blocks, comments cut off, and the code spans of running text."""
    text = read(path)
    if not path.endswith(".md"):
        blocks, prose = text, ""
    else:
        blocks = "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, flags=re.DOTALL))
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        blocks += "\n" + "\n".join(re.findall(r"^ {4}.*$", prose, flags=re.MULTILINE))
        prose = re.sub(r"^ {4}.*$", "", prose, flags=re.MULTILINE)
    blocks = re.sub(r"\s*\\\n\s*", " ", blocks)
    # Two commands may share a line: "make test   # why      make check   # why".
    lines = [part for line in blocks.splitlines()
             for part in re.split(r"\s{2,}(?=make )|\s#\s.*?(?=\s{2,}make |$)|[;&|]+\s", line)]
    return [line.strip() for line in lines] + re.findall(r"`([^`\n]+)`", prose)


class Project:
    """What there is to type."""

    def __init__(self):
        cli = "".join(read(path) for path in files("cli/*.cc"))
        self.targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
        self.verbs = {}  # a verb -> its own verbs; "app" stands for distca itself
        for parent, verb in re.findall(r'(\w+)(?:\.|->)add_subcommand\(\s*"([a-z]+)"', cli):
            self.verbs.setdefault(parent, set()).add(verb)
        self.options = {"--help", "--version", *re.findall(r'"(--[a-z-]+)"', cli)}
        self.with_value = set(re.findall(r'(?:add_option\(|number\(\*?\w+,)\s*"(--[a-z-]+)"', cli))
        self.keys = set(re.findall(r'[{(]\s*"([a-z]+\.\w+)"', read("distca/config/config_keys.cc")))
        self.sections = {key.split(".")[0] for key in self.keys}
        for name in ("targets", "options", "with_value", "keys"):
            assert len(getattr(self, name)) > 5, f"check_docs.py found no {name}: its search is out of date"
        assert self.verbs.get("app"), "check_docs.py found no verbs: its search is out of date"

    def faults(self, command):
        """What `command`, a line or a code span, names that does not exist."""
        if match := re.match(r"make +([a-z-]+)", command):
            if match[1] not in self.targets:
                yield f"make {match[1]}: no such target in the Makefile"
        for name in re.findall(r"\bbuild/[\w-]+/bench/(\w+)", command):
            if not (ROOT / f"bench/{name}.cc").exists():
                yield f"bench/{name}: no such program"
        for name in re.findall(r"(?<![\w./-])((?:configs|scripts|docs|bench|distca|cli|examples|tests|cmake|python)/[\w./-]*\w)",
                               command):
            if not re.search(r"[A-Z]{4}", name) and not (ROOT / name).exists():
                yield f"{name}: no such file"
        if match := re.match(r'(?:[\w./]*/|"\$)?distca"? +([a-z]+)\b(.*)', command):
            yield from self.verb_faults(match[1], match[2])
        elif match := re.fullmatch(r"([a-z]+)\.(\w+)( ?[=:] ?.*)?", command):
            if match[1] in self.sections and match[2] not in FILE_ENDINGS:
                yield from self.key_faults(f"{match[1]}.{match[2]}")

    def verb_faults(self, verb, rest):
        if verb not in self.verbs["app"]:
            yield f"distca {verb}: no such verb in cli/"
        inner = re.match(r" +([a-z]+)\b", rest)
        if verb in self.verbs and inner and inner[1] not in self.verbs[verb]:
            yield f"distca {verb} {inner[1]}: no such verb in cli/"
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest):
            if option not in self.options:
                yield f"distca {verb} {option}: no such option in cli/"
        for key in re.findall(r"(?<=\s)([a-z]\w*\.\w+)=", rest):
            yield from self.key_faults(key)
        if verb in ("train", "plan"):
            yield from self.override_faults(verb, rest)

    def override_faults(self, verb, rest):
        """Words of `distca train` and `plan` that are neither an option, its value nor section.key=value."""
        words = re.split(r"\s{2,}|\s[>|]", rest.strip())[0].split()  # what follows is an explanation, or the shell's
        for before, word in zip(["", *words], words):
            if before not in self.with_value and re.fullmatch(r"[\w./][\w./-]*", word):
                yield f"distca {verb} {word}: neither an option nor section.key=value (--config names a file)"

    def key_faults(self, key):
        if key not in self.keys:
            yield f"{key}: no such key in distca/config/config_keys.cc"


def readme():
    lines = read("README.md").splitlines()
    if len(lines) > README_LINES:
        yield f"README.md: {len(lines)} lines: at most {README_LINES}"
    if not any("make demo" in line for line in lines[:DEMO_BY_LINE]):
        yield f"README.md: make demo must be shown by line {DEMO_BY_LINE}"


def versions():
    """Faults: pages that say other versions than the package; a table that is not that of the log of `make test-matrix`."""
    names = {"PyTorch": "TORCH", "Transformers": "TRANSFORMERS", "Megatron-Core": "MEGATRON", "TorchTitan": "TORCHTITAN"}
    for path in ("README.md", "docs/python.md"):
        text = " ".join(read(path).split())
        for name, key in names.items():
            if (wanted := f"{name} {' to '.join(dict.fromkeys(tried(key)))}") not in text:
                yield f"{path}: it does not say that the package was tried with {wanted}"
    if read(test_matrix.PAGE) != test_matrix.page():
        yield f"{test_matrix.PAGE}: it is not what {test_matrix.LOG} says: scripts/test_matrix.py --table"


def public_header(path):
    """Faults: it opens with a program of examples/, word for word, which is short enough to be read there."""
    opening = read(path).partition("\n#include <")[0]
    names = re.findall(r"examples/\w+\.cc", opening)
    if not names:
        yield f"{path}: a public header opens with a complete program of examples/ and names it"
    for name in names:
        lines = read(name).splitlines()
        if len(lines) > EXAMPLE_LINES:
            yield f"{name}: {len(lines)} lines: at most {EXAMPLE_LINES}"
        if "\n".join(f"//   {line}" if line else "//" for line in lines) not in opening:
            yield f"{path}: it does not show {name} as it is"


def outside(path):
    """Faults: what a source names beside the project. A document with a name of one letter is one that a test makes."""
    text = read(path)
    for name in re.findall(r"(?<![\w./-])(?:[\w-]+/)*[\w-]{2,}\.md\b", text):
        if not (ROOT / name).exists():
            yield f"{path}: {name}: no such document in the project"
    if re.search(r"SOURCE_DIR\}/\.\.", text):
        yield f"{path}: a folder beside the project"


project, found = Project(), [*readme(), *versions()]
for path in files(*SOURCES):
    found += outside(path)
for path in files("distca/api/*.h"):
    if path.count("/") == 2:  # not those in distca/api/inside
        found += public_header(path)
for path in files("*.md"):
    found += links(path)
for path in files("*.md", "scripts/*.sh"):
    if path.startswith("bench/results/") or path == "docs/names.md":
        continue  # they tell what there was to type at the commit that they name
    found += [f"{path}: {fault}" for command in typed(path) for fault in project.faults(command)]
report(sorted(set(found)))
