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
# Of the others: likewise, with comments from # on.
HASH_LITERALS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?<!\S)#[^\n]*', re.DOTALL)
LANGUAGES = {".h": CPP_LITERALS, ".cc": CPP_LITERALS,
             **dict.fromkeys((".py", ".sh", ".cmake", "CMakeLists.txt"), HASH_LITERALS)}
TEST = re.compile(r"_(test|testing|test_child)\.\w+$|(^|/)test_|(^|/)tests/")


def files(*patterns):
    """Paths, relative to the root, of the files that belong to the project and match one of the git patterns."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(listed.splitlines()) if (ROOT / path).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def tried(name):
    """(the oldest, the newest) minor version of TORCH, TRANSFORMERS, MEGATRON or TORCHTITAN that the Python package was tried with."""
    return re.search(rf'^{name} = \("([\d.]+)", "([\d.]+)"\)', read("python/distca/_versions.py"), re.MULTILINE).groups()


def without_comments(path, text):
    """The same lines of a source without comments and Python's docstrings."""
    language = next(language for ending, language in LANGUAGES.items() if path.endswith(ending))

    def without(match):
        docstring = match[0].startswith('"""') and not text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip()
        comment = match[0].startswith(("//", "/*", "#")) or docstring
        return "\n" * match[0].count("\n") if comment else match[0]

    return language.sub(without, text)


def report(faults):
    """Prints the faults, one a line, and ends the check."""
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)
