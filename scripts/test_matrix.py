#!/usr/bin/env python3
"""Tries the Python package with the versions of PyTorch and of the libraries around it that people have.

    scripts/test_matrix.py                  all corners, one environment at a time; hours, since each PyTorch has a build
    scripts/test_matrix.py --rest           those that the log does not have; also after an interruption
    scripts/test_matrix.py CORNER...        these
    scripts/test_matrix.py --table          writes bench/results/matrix.md from the log, which each run does, too

A corner is a virtual environment (build/matrix/environment, removed afterwards) with the wheel of the package, built
against that environment's PyTorch, in which a short form of the tests runs. What became of it is a line of the log, and
its output stays in build/matrix/CORNER.log. pip fetches versions by name: of PyTorch several GB, unless .venv has it.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from project import ROOT, read

LOG = "bench/results/matrix.jsonl"
PAGE = "bench/results/matrix.md"
FOLDER = ROOT / "build/matrix"
ENVIRONMENT = FOLDER / "environment"
SECONDS = 3600  # that a corner's tests may take

CALL = ["test_package.py", "test_wheel.py", "test_attention.py", "test_attention_states.py", "test_ahead.py"]
MODELS = ["test_transformers.py", "test_transformers_states.py", "test_transformers_trainer.py", "test_ahead_loaders.py",
          "test_transformers_heads.py", "test_transformers_masks.py", "test_transformers_shard.py",
          "test_transformers_shard_trainer.py", "test_transformers_shard_misuse.py"]
FINE_TUNING = ["test_fine_tuning.py", "test_fine_tuning_shard.py"]
AXOLOTL = ["test_axolotl.py"]
MEGATRON = ["test_megatron.py", "test_megatron_refusals.py", "test_megatron_context.py"]
TORCHTITAN = ["test_torchtitan.py"]
MODULES = {AXOLOTL[0]: "distca.axolotl", MEGATRON[0]: "distca.megatron", TORCHTITAN[0]: "distca.torchtitan"}
USUAL = ("transformers==5.24.*", "accelerate")
# These are what Axolotl's training imports, in the versions that it asks for. Its other requirements serve GPUs, or no training.
OF_AXOLOTL = ("transformers==5.20.1", "accelerate==1.15.0", "trl==1.14.1", "peft==0.21.2", "datasets==5.0.1",
              "tokenizers==0.23.3", "pydantic==2.13.5", "kernels>=0.17.2,<0.18", "addict", "fire", "PyYAML==6.0.3",
              "einops", "colorama", "numba>=0.63.1,<1.0", "numpy>=2.1,<3.0", "typer==0.25.1", "scipy", "art",
              "python-dotenv==1.0.1", "axolotl-contribs-lgpl==0.0.7", "axolotl-contribs-mit==0.0.6",
              "posthog==6.7.11", "schedulefree==1.4.1", "sentencepiece", "nvidia-ml-py==12.560.30", "packaging==26.0",
              "fastcore", "zstandard==0.22.0", "evaluate==0.4.1", "pillow", "bitsandbytes==0.50.2", "wandb")


@dataclasses.dataclass(frozen=True)
class Corner:
    torch: str
    packages: tuple
    tests: list
    python: str = "3.11"
    needs: tuple = ()  # what the packages are installed with, in place of what they ask for themselves

    @property
    def name(self):
        return "-".join([f"torch{self.torch}", *(re.sub(r"[=*]+", "", one).rstrip(".") for one in self.packages)])

    @property
    def base(self):
        return self.torch, self.python


CORNERS = [  # those with one PyTorch stand together: it is built for once
    Corner("2.13", USUAL, CALL + MODELS),
    Corner("2.13", ("transformers==5.20.*", "accelerate"), MODELS),
    Corner("2.13", ("transformers==5.17.*", "accelerate"), MODELS),
    Corner("2.13", ("transformers==5.2.*", "accelerate"), MODELS),
    Corner("2.13", (*USUAL, "trl==1.16.*"), FINE_TUNING),
    Corner("2.13", (*USUAL, "peft"), FINE_TUNING),
    Corner("2.13", (*USUAL, "trl==1.16.*", "peft"), FINE_TUNING),
    Corner("2.13", ("axolotl==0.21.*",), AXOLOTL, python="3.12", needs=OF_AXOLOTL),
    Corner("2.13", ("megatron-core==0.16.*",), MEGATRON),
    *(Corner("2.13", (f"megatron-core==0.{minor}.*",), MEGATRON, python="3.12") for minor in (17, 18, 19)),
    Corner("2.13", ("torchtitan==0.3.*", "triton"), TORCHTITAN),
    Corner("2.15", ("torchtitan==0.3.*", "triton"), TORCHTITAN),
    *(Corner(torch, USUAL, CALL + MODELS) for torch in ("2.15", "2.14", "2.12", "2.11")),
]
NAMES = {corner.name: corner for corner in CORNERS}


class NotTried(Exception):
    """Why a corner could not be tried, in one line."""


def run(command, log, **options):
    """Whether the command ended with 0, and what it printed, which goes to the log as well."""
    log.write(f"$ {' '.join(map(str, command))}\n")
    try:
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, **options)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = f"{error.stdout or ''}\nstill running after {error.timeout:.0f} s", 124
    log.write(output + "\n")
    log.flush()
    return code == 0, output


def last_line(output):
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(("WARNING", "[notice]"))]
    return lines[-1] if lines else ""


def pip(log, *arguments, why):
    good, output = run([ENVIRONMENT / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "-q",
                        *arguments], log)
    if not good:
        errors = [line for line in output.splitlines() if line.startswith("ERROR")]
        raise NotTried(f"{why}: {(errors or [last_line(output)])[-1].removeprefix('ERROR: ')}")


def interpreter(version):
    """A Python of this minor version, of the system or of pyenv."""
    own = ROOT / ".venv/bin/python"
    found = [str(own)] if own.exists() and version == "3.11" else [shutil.which(f"python{version}") or ""]
    found += sorted(map(str, pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for python in filter(None, found):
        said = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
        if said.stdout.strip() == version:
            return python
    raise NotTried(f"there is no Python {version}")


def version_of(python, package):
    said = subprocess.run([python, "-c", f"import importlib.metadata as m; print(m.version('{package}'))"],
                          capture_output=True, text=True)
    return said.stdout.strip()


def make_environment(corner, log):
    """A new one with PyTorch: that of .venv if its version is asked for."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    python, own = interpreter(corner.python), ROOT / ".venv/bin/python"
    if not run([python, "-m", "venv", ENVIRONMENT], log)[0]:
        raise NotTried(f"{python} makes no virtual environment")
    if python == str(own) and version_of(own, "torch").startswith(f"{corner.torch}."):
        site = next(ENVIRONMENT.glob("lib/python*/site-packages"))
        (site / "project_torch.pth").write_text(str(next(own.parents[1].glob("lib/python*/site-packages"))))
    else:
        pip(log, "install", f"torch=={corner.torch}.*", "numpy", why=f"pip brings no PyTorch {corner.torch}")


def commit():
    """The commit that is tried, and whether it was changed since, other than by the results that corners write."""
    changed = subprocess.check_output(["git", "status", "--porcelain", "--", ".", f":!{LOG}", f":!{PAGE}"], cwd=ROOT, text=True)
    return subprocess.check_output(["git", "describe", "--always"], cwd=ROOT, text=True).strip() + ("-dirty" if changed else "")


def wheel_for(torch, log):
    """The wheel of the package for this minor version of PyTorch, built in the environment if it is not there."""
    folder, uses_own = FOLDER / "wheels" / torch, list(ENVIRONMENT.glob("lib/python*/site-packages/project_torch.pth"))
    sources = commit()
    if not list(folder.glob("*.whl")) or (folder / "sources").read_text() != sources:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(FOLDER / "compiled", ignore_errors=True)
        pip(log, "install", "scikit-build-core>=0.10", "nlohmann-json", why="pip brings nothing to build with")
        compiled = [] if uses_own else ["-C", f"build-dir={FOLDER / 'compiled'}"]  # else in build/wheel
        good, output = run([ENVIRONMENT / "bin/python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", *compiled,
                            "--wheel-dir", folder, ROOT], log,
                           env={**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("JOBS", "2")})
        if not good:
            raise RuntimeError(f"it does not compile against PyTorch {torch}")
        (folder / "sources").write_text(sources)
    return next(folder.glob("*.whl"))


def tested(corner, log):
    """(passed, refused or failed, one line) of the tests in the environment."""
    python = ENVIRONMENT / "bin/python"
    pip(log, "install", "pytest", "greenlet", "numpy", *(corner.needs or corner.packages), why="pip brings no such packages")
    if corner.needs:
        pip(log, "install", "--no-deps", *corner.packages, why="pip brings no such packages")
    wheel = wheel_for(corner.torch, log)
    pip(log, "install", "--force-reinstall", "--no-deps", wheel, why="the wheel does not install")
    module = MODULES.get(corner.tests[0], "distca.transformers")
    good, output = run([python, "-W", "ignore", "-c", f"import {module}"], log, cwd=FOLDER)
    if not good:
        line = last_line(output)
        return ("refused" if line.startswith("ImportError: distca ") else "failed"), line.removeprefix("ImportError: ")
    tests = [ROOT / "python/tests" / name for name in corner.tests]
    good, output = run([python, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "--rootdir", FOLDER, *tests], log,
                       cwd=FOLDER, timeout=SECONDS, env={**os.environ, "DISTCA_WHEEL": str(wheel)})
    return ("passed" if good else "failed"), last_line(output).strip("= ")


def tried(corner, log):
    """The line of the log that says what became of a corner."""
    entry = {"corner": corner.name, "date": datetime.date.today().isoformat(), "python": corner.python, "commit": commit()}
    try:
        mark = ENVIRONMENT / "base"
        if not mark.exists() or mark.read_text() != repr(corner.base):
            make_environment(corner, log)
            mark.write_text(repr(corner.base))
        result, line = tested(corner, log)
    except NotTried as error:
        result, line = "not tried", str(error)
    except RuntimeError as error:
        result, line = "failed", str(error)
    names = ["torch", *(re.split("[=<>]", one)[0] for one in corner.packages)]
    versions = {name: version_of(ENVIRONMENT / "bin/python", name) for name in names} if result != "not tried" else {}
    return {**entry, "versions": versions, "result": result, "line": line}


def entries():
    if not (ROOT / LOG).exists():
        return {}
    return {entry["corner"]: entry for entry in map(json.loads, read(LOG).splitlines())}


def page():
    """The table of all corners, those that have not been tried among them."""
    rows = ["# With which versions the Python package was tried", "    make test-matrix", "",
            "| PyTorch | with | Python | result | tried | commit |", "|---|---|---|---|---|---|"]
    log = entries()
    for corner in CORNERS:
        entry = log.get(corner.name, {"result": "not tried", "line": "", "versions": {}, "date": "", "commit": ""})
        wanted = dict(re.fullmatch(r"([^=]+)(?:==(.*)\.\*)?", one).groups("") for one in ("torch==" + corner.torch + ".*", *corner.packages))
        torch, *others = (f"{name} {entry['versions'].get(name, version)}".strip() for name, version in wanted.items())
        line = f": {entry['line']}" if entry["line"] and entry["result"] != "passed" else ""
        when = f"{entry['date']} | {entry['commit']}" if entry["result"] != "not tried" else " |"
        rows.append(f"| {torch.removeprefix('torch ')} | {', '.join(others)} | {corner.python} | {entry['result']}{line} | {when} |")
    return "\n".join(rows) + "\n"


def note(entry):
    log = {**entries(), entry["corner"]: entry}
    (ROOT / LOG).write_text("".join(json.dumps(log[name]) + "\n" for name in NAMES if name in log))
    (ROOT / PAGE).write_text(page())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corners", nargs="*", metavar="CORNER", help=" ".join(NAMES))
    parser.add_argument("--rest", action="store_true", help="those that the log does not have, or as not tried")
    parser.add_argument("--table", action="store_true", help="only write the table")
    options = parser.parse_args()
    if unknown := set(options.corners) - set(NAMES):
        parser.error(f"no such corner: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if options.table:
        (ROOT / PAGE).write_text(page())
        return
    results = {name: entry["result"] for name, entry in entries().items()}
    chosen = [corner for corner in CORNERS if corner.name in (options.corners or NAMES)
              and not (options.rest and results.get(corner.name, "not tried") != "not tried")]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for corner in chosen:
        with open(FOLDER / f"{corner.name}.log", "w") as log:
            entry = tried(corner, log)
        note(entry)
        results[corner.name] = entry["result"]
        print(f"test_matrix: {corner.name}: {entry['result']}: {entry['line']}", flush=True)
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    sys.exit(any(results[corner.name] == "failed" for corner in chosen))


if __name__ == "__main__":
    main()
