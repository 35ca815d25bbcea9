#!/usr/bin/env python3
"""The field's words: no name, key, field or message in the code uses a word that docs/names.md has replaced."""

import re

from project import CPP_LITERALS, files, read, report

# Where an old word is answered with the new one, and the tests of that.
ANSWERS = {"cli/main.cc", "distca/train/config.cc", "distca/train/config_test.cc", "distca/train/unknown_key.cc",
           "tests/bad_input_plans.cc",
           "distca/plan/plan_json.cc", "distca/plan/plan_json_test.cc"}
OPERATIONS = "enter|leave|resend|attend"
NAMES = {  # what is left of a source without comments and strings
    rf"\b({OPERATIONS}|gradient_sum)\(": "an operation's old name",
    r"\bk(Enter|Leave|Attend|Resend|GradientSum|Resent)\b": "an operation's old name",
    r"(\.|->)deps\b": "wait_for",
    r"\bresent\b|_resent\b": "redispatched",
    r"\w*(key_sub_range|KeySubRange)\w*": "split_kv",
    r"\w*(held_out|HeldOut)\w*": "validation",
    r"\b(Turns|Board|Verdict(?=::))\b": "AccumulationOrder, Heartbeat, diagnosis",
    r"\bkSchedules\b|\bSchedule::k": "Overlap",
}
WORDS = {  # what strings say
    rf"\b(forward|backward) (layer \S+ )?({OPERATIONS}|pre|post|gradient_sum)\b": "an operation's old name",
    r"train\.schedule|--schedule\b": "train.overlap, --overlap",
    r"\bresent\b|_resent\b": "redispatch",
    r"[Kk]ey.sub.range": "split-KV",
    r"[Hh]eld.out": "validation",
    r"\bpost_ms\b": "issue_ms",
}


def faults(path):
    text = read(path)
    strings = [(m.start(), m.group()) for m in CPP_LITERALS.finditer(text) if not m.group().startswith("/")]
    code = CPP_LITERALS.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    found = [(m.start(), m.group(), new) for old, new in NAMES.items() for m in re.finditer(old, code)]
    found += [(at + m.start(), m.group(), new) for at, words in strings for old, new in WORDS.items()
              for m in re.finditer(old, words)]
    for at, old, new in sorted(found):
        yield f"{path}:{text.count(chr(10), 0, at) + 1}: {old}: now {new} (docs/names.md)"


report([fault for path in files("*.cc", "*.h") if path not in ANSWERS for fault in faults(path)])
