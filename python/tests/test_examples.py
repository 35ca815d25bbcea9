"""The examples run on two processes, with DistCA and without it, and differ by two lines at most."""

import difflib
import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
SECONDS = 300
# (script, what it needs, the lines by which it differs at most, by how much losses may differ)
EXAMPLES = [("ddp_loop.py", "torch", 1, 1e-5), ("megatron_core.py", "megatron.core", 2, 1e-5),
            ("finetune_trainer.py", "accelerate", 2, 1e-4), ("fsdp2_ping_pong.py", "transformers", 2, 1e-5)]


def without_distca(name):
    """The example as it was before DistCA."""
    text = (FOLDER / name).read_text()
    if name == "ddp_loop.py":
        return text.replace("from distca import", "from sdpa_varlen import")
    return "".join(line for line in text.splitlines(keepends=True) if "distca." not in line)


def losses_of(path):
    """(what, loss) as two processes of the script print them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    folders = [str(FOLDER), *(folder for folder in sys.path if folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(what, float(loss)) for what, loss in re.findall(r"^(step \d+ \w+) ([0-9.]+)$", done.stdout, re.MULTILINE)]


def test_every_example_is_run():
    assert {path.name for path in FOLDER.glob("*.py") if "torchrun" in path.read_text()} == {name for name, *_ in EXAMPLES}


@pytest.mark.parametrize("name, needs, most_lines, bound", EXAMPLES)
def test_example_is_the_script_without_distca_but_for_a_line_or_two(tmp_path, name, needs, most_lines, bound):
    pytest.importorskip(needs)
    before, after = without_distca(name).splitlines(), (FOLDER / name).read_text().splitlines()
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
    added = [line for line in changes if line.startswith("+ ")]
    assert 1 <= len(added) <= most_lines and len(changes) - len(added) <= most_lines
    assert all("distca" in line for line in added) and not any("distca" in line for line in changes if line not in added)
    (tmp_path / name).write_text("\n".join(before) + "\n")
    want, got = losses_of(tmp_path / name), losses_of(FOLDER / name)
    assert len(want) >= 8 and [what for what, _ in got] == [what for what, _ in want]
    assert got[-1][1] < 0.9 * got[0][1]
    assert all(abs(a - b) <= bound * b for (_, a), (_, b) in zip(got, want)), (got, want)
