"""The examples run on two processes, with DistCA and without it, and differ by two lines at most."""

import difflib
import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
RUNNER = pathlib.Path(__file__).with_name("script_runner.py")
SECONDS = 900
# (script, what it needs, the lines by which it differs at most, by how much losses may differ)
EXAMPLES = [("ddp_loop.py", "torch", 1, 1e-5), ("megatron_core.py", "megatron.core", 2, 1e-5),
            ("finetune_trainer.py", "accelerate", 2, 1e-4), ("fsdp2_ping_pong.py", "transformers", 2, 1e-5)]
NOT_RUN = {"torchtitan_registry.py"}  # it needs GPUs: test_torchtitan.py reads it


def without_distca(name):
    """The example as it was before DistCA."""
    text = (FOLDER / name).read_text()
    if name == "ddp_loop.py":
        return text.replace("from distca import", "from sdpa_varlen import")
    return "".join(line for line in text.splitlines(keepends=True) if "distca." not in line)


def printed_by(path, processes=2, **variables):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
               str(RUNNER), str(path)]
    folders = [str(FOLDER), *(folder for folder in sys.path if folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                   **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses_of(printed):
    """[(what, loss)]"""
    return [(what, float(loss)) for what, loss in re.findall(r"^(step \d+ \w+) ([0-9.]+)$", printed, re.MULTILINE)]


def test_every_example_is_run():
    assert {path.name for path in FOLDER.glob("*.py") if "torchrun" in path.read_text()} - NOT_RUN == {
        "long_document.py", *(name for name, *_ in EXAMPLES)}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_document_over_all_ranks_takes_a_share_of_the_memory(ranks):
    """Activations fall as 1 / ranks. What does not is what a short document takes, and K and V that come from other ranks."""
    pytest.importorskip("transformers")
    peaks, losses = [], []
    for processes, tokens in ((1, 64), (1, 4096), (ranks, 4096)):
        # Without these variables, the C library keeps memory of before, and peaks vary.
        printed = printed_by(FOLDER / "long_document.py", processes, TOKENS=str(tokens), MALLOC_MMAP_THRESHOLD_="65536",
                             MALLOC_TRIM_THRESHOLD_="65536")
        losses.append([loss for _, loss in losses_of(printed)])
        peaks.append(max(int(peak) for peak in re.findall(r"at most (\d+) MB", printed)))
    assert len(losses[1]) == 3 and all(abs(a - b) <= 1e-5 * a for a, b in zip(*losses[1:], strict=True))
    short, one, of_ranks = peaks
    of_others = 4 * 4096 * 2 * 2 * 64 * 4 >> 20  # layers, tokens, K and V, their heads, head_dim, bytes
    print(f"peaks: a short document {short} MB, one process {one} MB, {ranks} ranks {of_ranks} MB")
    assert of_ranks <= 1.05 * (one - short) / ranks + short + of_others, (peaks, of_others)


@pytest.mark.parametrize("name, needs, most_lines, bound", EXAMPLES)
def test_example_is_the_script_without_distca_but_for_a_line_or_two(tmp_path, name, needs, most_lines, bound):
    pytest.importorskip(needs)
    before, after = without_distca(name).splitlines(), (FOLDER / name).read_text().splitlines()
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+ ", "- "))]
    added = [line for line in changes if line.startswith("+ ")]
    assert 1 <= len(added) <= most_lines and len(changes) - len(added) <= most_lines
    assert all("distca" in line for line in added) and not any("distca" in line for line in changes if line not in added)
    (tmp_path / name).write_text("\n".join(before) + "\n")
    want, got = (losses_of(printed_by(path)) for path in (tmp_path / name, FOLDER / name))
    assert len(want) >= 8 and [what for what, _ in got] == [what for what, _ in want]
    assert got[-1][1] < 0.9 * got[0][1]
    assert all(abs(a - b) <= bound * b for (_, a), (_, b) in zip(got, want)), (got, want)
