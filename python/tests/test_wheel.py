"""The wheel that DISTCA_WHEEL names: its tags, what it contains, and what its libraries need and export."""

import os
import pathlib
import re
import subprocess
import zipfile

import pytest

WHEEL = pathlib.Path(os.environ["DISTCA_WHEEL"])
MOST_BYTES = 5_000_000  # with a library for one version of PyTorch
# Beside PyTorch's own: the C and C++ libraries, which PyTorch needs, too.
SYSTEM = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
PYTORCH = {"libtorch.so", "libtorch_cpu.so", "libc10.so"}  # with CUDA or without


def output_of(*command):
    return subprocess.check_output([str(word) for word in command], text=True)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def libraries(unpacked):
    found = sorted((unpacked / "distca").rglob("*.so"))
    assert found[0].name == "libdistca_planner.so" and {path.name for path in found[1:]} <= {"libdistca_torch.so"}
    return found


def test_any_python_3_on_this_machine_takes_it(unpacked):
    (tag,) = re.fullmatch(r"distca-[0-9.]+-(py3-none-(?:linux|manylinux_2_\d+)_x86_64)\.whl", WHEEL.name).groups()
    (information,) = unpacked.glob("*.dist-info")
    assert f"Tag: {tag}\n" in (information / "WHEEL").read_text()
    needs = re.findall("^Requires-Dist: (.*)", (information / "METADATA").read_text(), re.MULTILINE)
    assert all("extra ==" in need and not re.match(r"torch\b", need) for need in needs), "pip would fetch a PyTorch"


def test_it_is_small_and_holds_the_package_alone(unpacked):
    files = [path for path in unpacked.rglob("*") if path.is_file() and ".dist-info" not in str(path)]
    folders = {path.parent for path in files if path.parent != unpacked / "distca"}
    assert all(re.fullmatch(r"distca/torch-2\.\d+", str(folder.relative_to(unpacked))) for folder in folders)
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES * max(1, len(folders))
    assert {path.suffix for path in files} == {".py", ".so", ".typed"}


def test_libraries_need_nothing_but_pytorch(libraries):
    for path in libraries:
        dynamic = output_of("readelf", "-d", path)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        runpath = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic)
        assert needed <= SYSTEM | PYTORCH, path.name
        assert runpath == (["$ORIGIN/../../torch/lib"] if needed & PYTORCH else []), path.name
        assert (path.name == "libdistca_planner.so") != bool(needed & PYTORCH), f"{path.name}: planning needs none"


def test_libraries_use_no_symbol_of_python_gloo_or_nccl(libraries):
    for path in libraries:
        symbols = output_of("nm", "-D", "-C", path)
        assert not re.findall(r".* (?:_?Py[A-Z_]\w*|.*\bgloo::.*|.*Gloo.*|.*[nN][cC][cC][lL].*)", symbols), path.name


def test_libraries_export_their_c_functions_alone(libraries):
    for path in libraries:
        exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", path).splitlines()}
        if path.name == "libdistca_planner.so":
            assert "distca_plan_batch" in exported
        assert not [name for name in exported if not name.startswith("distca_")], path.name
