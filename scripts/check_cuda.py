#!/usr/bin/env python3
"""Compiles, without a GPU, every source that includes PyTorch against the oldest and the newest one that is supported.

    scripts/check_cuda.py [--torch VERSION]... [--jobs N] [SOURCE...]     by default both, and all sources

A tensor may lie on a device in all of these sources, and no header of CUDA is there to help: types and syntax are
checked, nothing is linked or run. Sources and flags are those of CMake (compile_commands.json). The headers are those of
the PyTorch that .venv has, if it is of that version, else of its wheel with CUDA, which pip downloads by name the first
time (headers stay in build/check_cuda, 0.1 GB each). A precompiled header for each version takes half a minute, then a
source takes a few seconds on a free core.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import zipfile

from project import ROOT, files, read, tried

TORCH = [f"{version}.0" for version in tried("TORCH")]
FOLDER = ROOT / "build/check_cuda"
INCLUDES = re.compile(r"^#include <(torch|ATen|c10)/", re.MULTILINE)
SHARED = "#include <ATen/ATen.h>\n#include <torch/csrc/autograd/autograd.h>\n#include <torch/csrc/autograd/variable.h>\n"
DROPPED = re.compile(r" -(c|MD|Winvalid-pch|fpch-preprocess|(o|include|MT|MF) \S+)(?= )")


def fail(why):
    sys.exit(f"check_cuda: {why}")


def python():
    own = ROOT / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable


def run(command, why, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode != 0:
        fail(f"{why}\n{done.stdout[-2000:]}")
    return done.stdout


def installed():
    """The folder and version of the PyTorch that CMake takes."""
    said = run([python(), "-c", "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, sep='\\n')"],
               "no PyTorch: run scripts/setup.sh")
    folder, version = said.split("\n")[-3:-1]
    return folder, version.split("+")[0]


def headers(version, here):
    """The folder `include` of this PyTorch."""
    if here[1] == version:
        return pathlib.Path(here[0]) / "include"
    kept = FOLDER / version
    if not (kept / "whole").exists():
        wheels = FOLDER / "wheels"
        print(f"check_cuda: downloading PyTorch {version} with pip", flush=True)
        run([python(), "-m", "pip", "download", "-q", "--no-deps", "--progress-bar", "off", "-d", wheels, f"torch=={version}"],
            f"pip could not download PyTorch {version}")
        for wheel in wheels.glob("torch-*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(kept, [name for name in archive.namelist() if "/include/" in name])
            wheel.unlink()
        (kept / "whole").touch()
    return kept / "torch/include"


def commands():
    """Source -> words of its compile command, without those that say what is written and with which precompiled header."""
    run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", FOLDER / "cmake", "-DCMAKE_BUILD_TYPE=Release", "-DDISTCA_BUILD_PYTHON=ON",
         "-DCMAKE_UNITY_BUILD=OFF", "--log-level=WARNING"], "CMake failed")
    found = {}
    for entry in json.loads((FOLDER / "cmake/compile_commands.json").read_text()):
        source = os.path.relpath(entry["file"], ROOT)
        words = shlex.split(DROPPED.sub("", entry["command"]))
        words = words[words.index(next(word for word in words if re.search(r"(g\+\+|clang\+\+|c\+\+)[-\d.]*$", word))):]
        found.setdefault(source, [word for word in words if word != entry["file"]])
    return found


def precompiled(version, words):
    """A header that nearly all sources share, compiled once a version."""
    header = FOLDER / f"shared_{version}.h"
    header.write_text(SHARED)
    run([*words, "-x", "c++-header", header, "-o", f"{header}.gch"], f"PyTorch {version}'s own headers do not compile")
    return header


def check(version, here, commands, sources, jobs):
    """How many of the sources do not compile against this version."""
    include = headers(version, here)
    commands = {source: [word.replace(f"{here[0]}/include", str(include)) for word in words]
                for source, words in commands.items()}
    shared = precompiled(version, commands["distca/comm/aten_types.cc"])

    def one(source):
        start = time.monotonic()
        words = ["nice", *commands[source], "-fsyntax-only", "-include", str(shared), source]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return source, done, time.monotonic() - start

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for source, done, seconds in pool.map(one, sources):
            outcome = "PASS" if done.returncode == 0 else "FAIL"
            print(f"{outcome}  {version}  {source:<50} {seconds:5.1f} s", flush=True)
            if done.returncode != 0:
                failed += 1
                print(done.stdout, flush=True)
    print(f"check_cuda: {len(sources) - failed} of {len(sources)} sources compile against PyTorch {version} ({include})")
    return failed


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--torch", action="append", help="a version; may be given several times")
    options.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")))
    options.add_argument("sources", nargs="*")
    asked = options.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    here, known = installed(), commands()
    sources = asked.sources or [path for path in files("*.cc") if INCLUDES.search(read(path))]
    unknown = [source for source in sources if source not in known]
    if unknown:
        fail(f"in no CMakeLists.txt: {', '.join(unknown)}")
    sys.exit(sum(check(version, here, known, sources, asked.jobs) for version in asked.torch or TORCH) > 0)


main()
