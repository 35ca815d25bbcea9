"""Importing the package: without PyTorch, from where it is installed, quickly; other versions get one line."""

import pathlib
import subprocess
import sys

import pytest

import distca
from distca import _build, _library, _versions

INSTALLED = pathlib.Path(distca.__file__).resolve().parent


def python(program, *options, **environment):
    """What a new Python prints."""
    done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_installed_package_is_tested():
    assert INSTALLED.is_relative_to(pathlib.Path(sys.prefix).resolve())
    assert not (pathlib.Path(__file__).resolve().parents[2] / "python/distca/_build.py").exists()
    assert (INSTALLED / "py.typed").exists()
    assert distca.__version__ == _build.VERSION


def test_planning_imports_no_pytorch_and_says_nothing():
    program = """if True:
        import sys
        sys.modules["torch"] = None  # importing it fails
        import distca, distca.plan
        print(distca.plan.plan_batch([0, 8], 1, distca.plan.Shape(1, 1, 8)).num_ranks)"""
    assert python(program) == "1\n"


def test_what_computes_is_named_before_it_is_loaded():
    assert {"attention", "flash_attn_varlen_func", "dispatch", "combine", "init"} < set(dir(distca))
    with pytest.raises(AttributeError, match="module 'distca' has no attribute 'attend'"):
        distca.attend


def test_importing_takes_no_longer_than_a_part_of_the_standard_library():
    program = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
    ours, theirs = (min(float(python(program.format(what))) for _ in range(7)) for what in ("distca.plan", "asyncio, unittest.mock"))
    print(f"import distca.plan: {1e3 * ours:.1f} ms, asyncio and unittest.mock: {1e3 * theirs:.1f} ms of the processor")
    assert ours < theirs


def stub(folder, package, text):
    (folder / f"{package}.py").write_text(text)


def built_for(folder, monkeypatch, *versions):
    """The package has libraries for these versions of PyTorch."""
    monkeypatch.setattr(_library, "FOLDER", folder / "package")
    for version in versions:
        (folder / "package" / f"torch-{version}").mkdir(parents=True)


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """A folder that is looked into first; PyTorch is not loaded."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    built_for(tmp_path, monkeypatch, "2.9", "2.13", "2.12")
    return tmp_path


def line_of(function):
    with pytest.raises(ImportError) as raised:
        function()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("version, line", [
    ("2.10.1", f"distca needs PyTorch 2.11 or newer, but 2.10.1 is installed: {_versions._LIBRARIES['torch'][2]}"),
    ("2.16a0+git1", "this distca was built for PyTorch 2.9, 2.12, 2.13 and fits no other minor version, but 2.16a0+git1 is "
                    "installed: build distca again, pip install --no-build-isolation --force-reinstall DISTCA"),
    ("2.11.1+cu130", "this distca was built for PyTorch 2.9, 2.12, 2.13 and fits no other minor version, but 2.11.1+cu130 "
                     "is installed: build distca again, pip install --no-build-isolation --force-reinstall DISTCA"),
])
def test_another_pytorch_is_refused_in_one_line(stubs, version, line):
    stub(stubs, "torch", f"__version__ = '{version}'")
    assert line_of(_versions.require_torch) == line


@pytest.mark.parametrize("version, folder", [("2.13.4+cu130", "torch-2.13"), ("2.12.0", "torch-2.12")])
def test_the_library_for_the_pytorch_that_is_there_is_chosen(stubs, version, folder):
    stub(stubs, "torch", f"__version__ = '{version}'")
    assert _versions.require_torch() == folder


def test_versions_that_were_not_tried_get_one_warning(stubs, monkeypatch):
    built_for(stubs, monkeypatch, "2.99")
    for module, package, name, check in (("torch", "torch", "PyTorch", _versions.require_torch),
                                         ("transformers", "transformers", "Transformers",
                                          lambda: _versions.require("transformers"))):
        oldest, newest = _versions.TORCH if module == "torch" else _versions.TRANSFORMERS
        monkeypatch.delitem(sys.modules, module, raising=False)
        stub(stubs, module, "__version__ = '2.99.1'" if module == "torch" else "__version__ = '99.0.dev0'")
        with pytest.warns(UserWarning) as said:
            check()
        found = sys.modules[module].__version__
        assert [str(one.message) for one in said] == [
            f"distca was tried with {name} {' to '.join(dict.fromkeys((oldest, newest)))}, and {found} is installed; if something goes wrong: "
            f'pip install "{package}=={newest}.*"']


def test_a_missing_pytorch_is_said(stubs, monkeypatch):
    stub(stubs, "torch", "raise ModuleNotFoundError('no torch', name='torch')")
    assert line_of(_versions.require_torch) == ("distca needs PyTorch 2.11 or newer here, and PyTorch is not installed: "
                                                "pip install torch")
    stub(stubs, "torch", "import what_pytorch_needs")
    with pytest.raises(ModuleNotFoundError, match="what_pytorch_needs"):
        _versions.require_torch()
    monkeypatch.setattr(_library, "FOLDER", stubs)
    assert line_of(_versions.require_torch) == ("this distca was built without PyTorch: it can plan (distca.plan) and "
                                                "no more")
