"""The examples run on two processes, with DistCA and without it, and differ by two lines at most."""

import difflib
import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
SECONDS = 120


def without_distca(name):
    """The lines of the example as they were before DistCA."""
    if name == "ddp_loop.py":
        return (FOLDER / name).read_text().replace("from distca import", "from sdpa_varlen import")
    lines = (FOLDER / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "distca.megatron" not in line)


def losses_of(path):
    """What two processes of the script print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    folders = [str(FOLDER), *(folder for folder in sys.path if folder)]
    settings = {"PYTHONPATH": os.pathsep.join(folders), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step \d+ loss ([0-9.]+)$", done.stdout, re.MULTILINE)]


@pytest.mark.parametrize("name, needs, most", [("ddp_loop.py", "torch", 1), ("megatron_core.py", "megatron.core", 2)])
def test_example_is_the_script_without_distca_but_for_a_line_or_two(tmp_path, name, needs, most):
    pytest.importorskip(needs)
    before, after = without_distca(name).splitlines(), (FOLDER / name).read_text().splitlines()
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    removed = [line for line in difflib.ndiff(before, after) if line.startswith("- ")]
    assert 1 <= max(len(changed), len(removed)) <= most and "distca" not in "".join(removed)
    (tmp_path / name).write_text("\n".join(before) + "\n")
    want, got = losses_of(tmp_path / name), losses_of(FOLDER / name)
    assert len(got) == len(want) == 8 and got[-1] < got[0]
    assert all(abs(a - b) <= 1e-5 * b for a, b in zip(got, want)), (got, want)
