#!/usr/bin/env python3
"""Which PyTorch scripts/setup.sh takes, against indexes of this machine: one that answers, one that never does.

setup.sh runs in a copy of scripts/, so that .venv is the copy's; the wheels are empty and differ in their versions.
"""
import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

from run_command import ROOT, output_of

VERSION = "2.13.0"
LIMIT_S = 10  # of setup.sh, for an index that does not answer


def write_wheel(folder, version):
    """An empty wheel of torch, with its place in a simple index."""
    folder.mkdir(parents=True)
    name = f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    link = name.replace("+", "%2B")
    (folder / "index.html").write_text(f'<a href="{link}#sha256={digest}">{name}</a>')


class Indexes:
    """Simple indexes below one folder, served over HTTP, and a port that accepts and says nothing."""

    def __init__(self, folder):
        for name, version in (("cpu", f"{VERSION}+cpu"), ("pypi", VERSION), ("mirror", f"{VERSION}+mirror")):
            write_wheel(folder / name / "torch", version)

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.silent_socket = socket.create_server(("127.0.0.1", 0))
        self.silent = f"http://127.0.0.1:{self.silent_socket.getsockname()[1]}/cpu"

    def url(self, name):
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.silent_socket.close()


class SetupTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.indexes = Indexes(cls.folder / "indexes")
        cls.tree = cls.folder / "tree"
        shutil.copytree(ROOT / "scripts", cls.tree / "scripts")
        (cls.tree / "python/distca").mkdir(parents=True)
        shutil.copy(ROOT / "python/distca/_versions.py", cls.tree / "python/distca")
        # pip asks only the indexes of this test; no proxy stands between.
        cls.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PIP_", "TORCH_")) and "proxy" not in name.lower()
        }
        cls.environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": cls.indexes.url("pypi"),
                            "PIP_NO_CACHE_DIR": "1"}

    @classmethod
    def tearDownClass(cls):
        cls.indexes.close()
        shutil.rmtree(cls.folder)

    def shell(self, script, **environment):
        return subprocess.run(["bash", "-c", f". scripts/torch_index.sh; {script}"], cwd=self.tree, text=True,
                              capture_output=True, env=self.environment | environment, timeout=300)

    def choice(self, cpu_index, root="/nonexistent", seconds=300, **environment):
        """What choose_torch_index sets: index and reason."""
        script = f'choose_torch_index {VERSION} "{cpu_index}" {seconds} "{root}"; printf "%s\\n%s" "$torch_index" "$torch_reason"'
        run = self.shell(script, **environment)
        self.assertEqual(run.returncode, 0, run.stderr)
        index, _, reason = run.stdout.partition("\n")
        return index, reason

    def run_setup(self, **environment):
        return output_of("scripts/setup.sh", cwd=self.tree, env=self.environment | environment)

    def setup(self, **environment):
        """setup.sh with no PyTorch in .venv: its output and the version installed."""
        python = self.tree / ".venv/bin/python"
        if python.exists():
            output_of(python, "-m", "pip", "uninstall", "-q", "-y", "torch")
        output = self.run_setup(**environment)
        return output, output_of(python, "-c", "import importlib.metadata as m; print(m.version('torch'))").strip()

    def test_a_device_is_found_by_what_its_driver_shows(self):
        root = self.folder / "root"
        found = lambda: self.shell(f'has_nvidia_device "{root}"', PATH=f"{bin_folder}:{os.environ['PATH']}").returncode
        bin_folder = self.folder / "bin"
        for folder in (bin_folder, root / "dev"):
            folder.mkdir(parents=True)
        tool = bin_folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
        tool.chmod(0o755)
        (root / "dev/nvidiactl").touch()
        self.assertNotEqual(found(), 0)
        (root / "dev/nvidia3").touch()
        self.assertEqual(found(), 0)
        (root / "dev/nvidia3").unlink()
        (root / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
        self.assertEqual(found(), 0)
        shutil.rmtree(root / "proc")
        self.assertNotEqual(found(), 0)
        tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
        self.assertEqual(found(), 0)

    def test_the_index_follows_the_device_and_what_the_user_names(self):
        cpu = self.indexes.url("cpu")
        self.assertEqual(self.choice(cpu)[0], cpu)
        self.assertIn("the CPU build, about 0.2 GB", self.choice(cpu + "/")[1])
        with_device = self.folder / "with_device"
        (with_device / "dev").mkdir(parents=True)
        (with_device / "dev/nvidia0").touch()
        self.assertEqual(self.choice(cpu, root=with_device)[0], "")
        self.assertIn("about 3 GB", self.choice(cpu, root=with_device)[1])
        self.assertEqual(self.choice(cpu, TORCH_INDEX_URL="http://mirror")[0], "http://mirror")
        for bad in (self.indexes.silent, self.indexes.url("nothing"), "http://127.0.0.1:1", "http://no.such.host.invalid"):
            index, reason = self.choice(bad, seconds=1)
            self.assertEqual(index, "", bad)
            self.assertIn(f"{bad} does not offer the CPU build within 1 s: pip's own index", reason)

    def test_setup_takes_the_cpu_build_and_pypis_where_its_index_is_silent(self):
        output, version = self.setup(TORCH_CPU_INDEX_URL=self.indexes.url("cpu"))
        self.assertEqual(version, f"{VERSION}+cpu", output)
        self.assertIn("no NVIDIA device: the CPU build", output)

        start = time.monotonic()
        output, version = self.setup(TORCH_CPU_INDEX_URL=self.indexes.silent)
        self.assertEqual(version, VERSION, output)
        self.assertIn(f"does not offer the CPU build within {LIMIT_S} s", output)
        self.assertIn("about 3 GB with CUDA", output)
        self.assertGreater(time.monotonic() - start, LIMIT_S)

        self.assertEqual(self.run_setup(), f"setup: everything is there (PyTorch {VERSION} in .venv)\n")

    def test_a_pytorch_that_is_there_is_taken_unless_it_is_too_old(self):
        for version, is_taken in (("2.9.1", False), ("2.11.0", True), ("2.15.2+cu130", True), ("3.0.0", True)):
            python = self.folder / "python"
            python.write_text(f"#!/bin/sh\necho {version}\n")
            python.chmod(0o755)
            torch_of = output_of("sed", "-n", "/^torch_of()/,/^}/p", "scripts/setup.sh", cwd=self.tree)
            done = self.shell(f'{torch_of}\ntorch_of "{python}"')
            self.assertEqual((done.returncode == 0, done.stdout), (is_taken, f"{version}\n" if is_taken else ""), done.stderr)


if __name__ == "__main__":
    if subprocess.run([sys.executable, "-c", "import importlib.metadata as m; m.version('torch')"],
                      capture_output=True).returncode == 0:
        sys.exit(77)  # setup.sh uses the PyTorch that comes with this Python
    unittest.main()
