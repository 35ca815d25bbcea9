#!/usr/bin/env python3
"""What trains reads tensors of a device, and brings some there, only through distca/comm/host_read.h, which counts it.

A read waits for the device; so do operators whose result's size depends on numbers.
"""

import re

from project import TEST, files, read, report, without_comments

ROOMS = ("model", "runtime", "report", "train", "comm")
WAITS = {
    r"\.item(<[^>]*>)?\(": "host_number()",
    r"\.cpu\(": "host_copy()",
    r"\.to\([^;]*?\b(\w*device\w*|\w*Device|place|kCPU|kCUDA)\b[^;]*;": "host_copy() or upload()",
    r"(\.|->)synchronize\w*\(": "a read of distca/comm/host_read.h, or events",
    r"at::(equal|nonzero\w*|_?unique\w*|masked_select|bincount|is_nonzero|repeat_interleave|histc)\(":
        "an operator whose result's size does not depend on numbers",
    r"\.(equal|nonzero|is_nonzero|masked_select|allclose)\(":
        "an operator whose result's size does not depend on numbers",
}
# path: what it may do there, and why.
EXCEPTIONS = {
    "distca/comm/host_read.cc": (".item", ".cpu", ".to", "is what the others go through"),
    "distca/runtime/cuda/device_clock.cc": (".synchronize", "reads the step's times, once all of it was given"),
    "distca/train/compute_peak.cc": (".synchronize", "measures the device before the first step"),
}


def faults(path):
    text = without_comments(path, read(path))
    *allowed, _ = EXCEPTIONS.get(path, ("",))
    for pattern, instead in WAITS.items():
        for match in re.finditer(pattern, text):
            if not match[0].startswith(tuple(allowed)):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {match[0].split('(')[0]}(: use {instead}"


paths = [path for room in ROOMS for path in files(f"distca/{room}/**.cc", f"distca/{room}/**.h") if not TEST.search(path)]
report([fault for path in paths for fault in faults(path)]
       + [f"{path}: an exception for no file" for path in EXCEPTIONS if path not in paths])
