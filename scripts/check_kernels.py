#!/usr/bin/env python3
"""Loads and calls compiled kernels of FlashAttention 4 (`distca kernels build`) on a machine without a GPU.

  scripts/check_kernels.py FOLDER

A stand-in of CUDA's run-time library (check_kernels_cudart.c) takes their images and launches. It is checked of every
object in the folder's manifest that

- its hash is the manifest's, it loads, and its image is for the manifest's architecture;
- its arguments have the names that are expected, in this order;
- a call as the operator makes it is accepted: one launch of its kernel, on the stream given, whose grid covers all
  sequences, with as many threads as the kernel demands and no more shared memory than there is;
- the launch has a place in memory for each parameter of the kernel, and each tensor's address is in one of them, or
  in a descriptor with its sizes and strides; so are the scale and the window;
- a call with one fault is refused, in words that name it, and launches nothing.

A table says how big the kernels are and what they need. "spills" are instructions on a thread's local memory, which
only cuobjdump can count (of CUDA, or of the package triton; "-" without it). Exit code 1: a check failed; 2: bad input.
"""

import argparse
import hashlib
import importlib.util
import multiprocessing
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

import kernel_images
from kernel_calls import LAUNCHES, Caller, wrong
from kernel_standin import Fault, Standin
from _kernels import FORMAT, SIGNATURES, VERSION, manifest_of, signature  # whose folder kernel_calls knows

MANIFEST = "manifest.json"
SOURCE = pathlib.Path(__file__).with_name("check_kernels_cudart.c")
CUT_OFF = 511  # letters of an error that objects kept at least
COLUMNS = ("object", "KiB", "registers", "stack", "spills", "shared", "threads", "parameters", "bytes", "calls", "refused")


class BadInput(Exception):
    """One line for the user."""


def read_manifest(folder):
    path = folder / MANIFEST
    try:
        manifest = manifest_of(folder)
    except OSError:
        raise BadInput(f"{path} cannot be read: FOLDER is one that distca kernels build has made") from None
    if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise BadInput(f"{path} is damaged, or not of the format {FORMAT}, version {VERSION}")
    lacking = {"arch", "cuda", "dtype", "head_dim", "heads_of_a_key_head", "masks", "sha256"} - set(manifest)
    if lacking:
        raise BadInput(f"{path} lacks {', '.join(sorted(lacking))}")
    return manifest


def uses(manifest):
    """File -> the masks and steps for which it is called."""
    found = {}
    for mask, of_mask in manifest["masks"].items():
        for step, name in of_mask["kernels"].items():
            found.setdefault(name, []).append((mask, step))
    return found


def check_hashes(folder, manifest, names):
    for name in sorted(names | set(manifest["sha256"])):
        path = folder / name
        if not path.is_file():
            raise BadInput(f"{path}, which {MANIFEST} names, is missing")
        if hashlib.sha256(path.read_bytes()).hexdigest() != manifest["sha256"].get(name):
            raise Fault(f"{name}: is not the file that {MANIFEST} describes")


def compile_standin(folder, objects, cuda):
    """The library's path. It has each symbol that one of the objects needs."""
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise BadInput(f"{compiler} is not found: a C compiler makes the stand-in; CC may name it")
    own = set(re.findall(r"^[\w ]+?\*?\s?\*?(cuda\w+)\(", SOURCE.read_text(), re.MULTILINE))
    needed = {name for path in objects for name, is_undefined in kernel_images.Elf(path.read_bytes()).symbols(".dynsym")
              if is_undefined and name.startswith("cu")}
    made = pathlib.Path(folder) / f"libcudart.so.{cuda}"
    others = " ".join(f"OTHER({name})" for name in sorted(needed - own))
    done = subprocess.run([compiler, "-std=c11", "-shared", "-fPIC", "-Wall", "-Wextra", f"-DREST={others}",
                           f"-Wl,-soname,{made.name}", "-o", made, SOURCE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"{compiler} cannot compile {SOURCE.name}: {done.stderr.strip().splitlines()[0]}")
    return made, len(needed)


def spills(image):
    """Instructions that store to or load from local memory; "-" if nothing can count them."""
    package = importlib.util.find_spec("triton")
    folders = package.submodule_search_locations if package else []
    path = os.pathsep.join([os.environ.get("PATH", ""), *(f"{folder}/backends/nvidia/bin" for folder in folders)])
    program = shutil.which("cuobjdump", path=path)
    if program is None:
        return "-"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run([program, "-sass", file.name], capture_output=True, text=True, check=False,
                              env=os.environ | {"PATH": f"{os.path.dirname(program)}{os.pathsep}{path}"})
    if done.returncode or "EXIT" not in done.stdout:
        return "-"
    return len(re.findall(r"\b(?:STL|LDL)\b", done.stdout))


def check_refusals(standin, arguments):
    """Of each wrong call, all of which are refused, whether the reason is cut off."""
    for what, values, begins, ends in wrong(arguments):
        try:
            standin.call(values)
        except Fault as fault:
            words = str(fault)
        else:
            raise Fault(f"{what} is not refused")
        is_cut = ends not in words and len(words) >= CUT_OFF
        if begins not in words or (ends not in words and not is_cut):
            raise Fault(f"{what} is refused, but not as \"{begins} ... {ends}\": {words}")
        if standin.launches:
            raise Fault(f"{what} is refused, and yet something is launched")
        yield is_cut


def check_object(library, path, manifest, masks_and_steps):
    """What the table says of an object."""
    standin = Standin(library, path)
    cut, shared = [], []
    for mask, step in masks_and_steps:
        caller = Caller(manifest, mask)
        if signature(path.read_bytes()) != SIGNATURES[step]:
            raise Fault(f"{path.name}, {step}: takes {' '.join(signature(path.read_bytes())) or 'nothing'}, and not "
                        f"{' '.join(SIGNATURES[step])}")
        for launch in LAUNCHES:
            if launch.key_starts and step != "forward":
                continue  # backward is given keys one after another
            arguments = caller.arguments(step, launch)
            try:
                kernel, config = standin.checked_call(arguments)
                standin.check_grid(step, caller, launch, config)
                # Backward reads Q and K before its predecessor has ended, which writes neither.
                if standin.begins_early and not step.startswith("backward"):
                    raise Fault("it may begin before the kernel that writes what it reads has ended")
            except Fault as fault:
                raise Fault(f"{path.name}, {step}, mask {mask}, sequences \"{launch.name}\": {fault}") from None
            shared.append(config.shared)
        try:
            cut += check_refusals(standin, arguments)
        except Fault as fault:
            raise Fault(f"{path.name}, {step}, mask {mask}: {fault}") from None
    if standin.arch != int(re.sub(r"\D", "", manifest["arch"])):
        raise Fault(f"{path.name} is for sm_{standin.arch}, the manifest says {manifest['arch']}")
    return {"object": path.stem, "KiB": f"{path.stat().st_size / 1024:.1f}", "registers": kernel.registers,
            "stack": kernel.frame, "spills": spills(standin.image), "shared": max(shared), "threads": config.block.x,
            "parameters": len(kernel.parameters), "bytes": kernel.parameter_bytes, "calls": len(shared),
            "refused": len(cut), "cut": sum(cut), "asked": sorted(standin.asked)}


def check_apart(library, path, *more):
    """check_object in a process of its own, which an object may end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        try:
            return pool.submit(check_object, library, path, *more).result()
        except BrokenProcessPool:
            raise Fault(f"{path.name} ends its process") from None
        except (ValueError, LookupError, struct.error) as fault:
            raise Fault(f"{path.name}: {fault!r}") from None


def print_table(rows):
    cells = [COLUMNS] + [[str(row[key]) for key in COLUMNS] for row in rows]
    first, *others = (max(map(len, column)) for column in zip(*cells))
    for name, *figures in cells:
        print("  ".join([name.ljust(first), *map(str.rjust, figures, others)]))


def check(folder):
    manifest = read_manifest(folder)
    by_file = uses(manifest)
    check_hashes(folder, manifest, set(by_file))
    paths = [folder / name for name in sorted(by_file)]
    with tempfile.TemporaryDirectory() as scratch:
        library, symbols = compile_standin(scratch, paths, manifest["cuda"])
        rows = [check_apart(library, path, manifest, by_file[path.name]) for path in paths]
    print_table(rows)
    asked = sorted({name for row in rows for name in row["asked"]})
    print(f"of CUDA they need {symbols} symbols and use {', '.join(asked)}")
    totals = {key: sum(row[key] for row in rows) for key in ("calls", "refused", "cut")}
    if totals["cut"]:
        print(f"the reason of {totals['cut']} refusals is cut off: the objects keep too few letters of an error")
    print(f"check_kernels: {len(rows)} objects of {sum(map(len, by_file.values()))} steps: {totals['calls']} calls "
          f"launched what they should, {totals['refused']} wrong ones were refused")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    try:
        check(options.parse_args().folder)
    except BadInput as fault:
        sys.exit(print(f"check_kernels: error: {fault}", file=sys.stderr) or 2)
    except (Fault, kernel_images.NotAnImage) as fault:
        sys.exit(print(f"check_kernels: FAIL: {fault}", file=sys.stderr) or 1)


main()
