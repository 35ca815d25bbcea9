#!/usr/bin/env python3
"""A project outside the tree builds with an installed distca and runs: install_test.py BUILD_FOLDER PYTHON."""

import pathlib
import shutil
import sys

from run_command import ROOT, output_of


def main():
    build, python = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder = build / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    installed, outside = folder / "installed", folder / "build"
    output_of("cmake", "--install", build, "--prefix", installed)
    headers = {str(path.relative_to(installed / "include")) for path in installed.glob("include/**/*.h")}
    for header in headers:  # nothing of the inside
        assert header.split("/")[1] not in ("program", "runtime", "kernels", "trace"), header
    output_of("cmake", "-G", "Ninja", "-S", ROOT / "tests/outside", "-B", outside, f"-DCMAKE_PREFIX_PATH={installed}",
              f"-DDISTCA_EXAMPLES={ROOT / 'examples'}", f"-DDISTCA_PYTHON={python}", "-DCMAKE_BUILD_TYPE=Debug",
              *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []))
    # Each public header on its own, without PyTorch's.
    for header in sorted(headers):
        output_of("c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", installed / "include",
                  installed / "include" / header)
    output_of("cmake", "--build", outside, "-j", "2")
    assert str(installed) in (outside / "build.ninja").read_text() and f"{ROOT}/distca" not in (
        outside / "build.ninja").read_text(), "the project outside sees the tree"
    print(output_of(outside / "examples/plan"), output_of(outside / "examples/core_attention"), end="")


main()
