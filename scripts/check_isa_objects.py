#!/usr/bin/env python3
"""The CPU kernel's objects that are compiled for one instruction set define nothing the linker could share.

  check_isa_objects.py NM OBJECT...     objects not called engine_* are passed over

Of a function that several objects define (inline functions, templates) the linker keeps any one copy: were it the
copy of engine_avx512.cc, every other part of the program would run AVX-512 code on machines that lack it. So these
objects may export their Engines and nothing else. Nor may they have code that runs when the program starts.
"""

import pathlib
import re
import subprocess
import sys

from project import report

ENGINE = re.compile(r"distca::kernels::k\w+Engines")
# How code with exceptions names its personality routine, and AddressSanitizer a global: data, alike in every object.
DATA = re.compile(r"DW\.ref\.|__odr_asan")


def defined(nm, path, *options):
    """(type, name) of what the object defines."""
    command = [nm, "--defined-only", *options, path]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(maxsplit=2)[1:] for line in lines if line]


nm, *objects = sys.argv[1:]
engines = [path for path in objects if pathlib.Path(path).name.startswith("engine_")]
faults = [] if engines else ["no object called engine_* among those named: nothing was checked"]
for path in engines:
    symbols = defined(nm, path, "--extern-only", "--demangle")
    name = pathlib.Path(path).name
    if not any(ENGINE.fullmatch(symbol) for _, symbol in symbols):
        faults.append(f"{name}: defines no distca::kernels::k...Engines")
    faults += [f"{name}: defines {symbol} (nm type {kind}), which the linker may use everywhere: put it into an "
               f"anonymous namespace, or do not call it there"
               for kind, symbol in symbols if not ENGINE.fullmatch(symbol) and not DATA.match(symbol)]
    faults += [f"{name}: {symbol} runs when the program starts: make the variables constinit"
               for _, symbol in defined(nm, path) if symbol.startswith("_GLOBAL__sub_I")]
report(faults)
