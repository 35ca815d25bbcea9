#!/usr/bin/env python3
"""scripts/check_kernels.py without a compiled kernel: what it reads of an image, how it calls, and what it refuses."""

import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from run_command import ROOT

SCRIPTS = pathlib.Path(ROOT) / "scripts"
sys.path.insert(0, str(SCRIPTS))

sys.path.insert(1, str(pathlib.Path(ROOT) / "python/distca"))

import kernel_calls  # noqa: E402
import kernel_images  # noqa: E402
import kernel_standin  # noqa: E402
from _kernels import SIGNATURES  # noqa: E402

MANIFEST = {"format": "distca-kernels", "version": 1, "arch": "sm_90a", "cuda": 13, "dtype": "bfloat16",
            "head_dim": 128, "heads_of_a_key_head": 4,
            "masks": {"causal": {"tiles": [64, 128], "kernels": {"forward": "causal_forward.so"}}}}
# A kernel that accepts every call and launches nothing.
IDLE = """
#include <stdint.h>
const char* signature = "`__call__(SIGNATURE)`";
int __tvm_ffi_func(void* self, const void* values, int32_t count, void* result) { return 0; }
void distca_kernel_stream(void* stream) {}
const char* distca_kernel_error(void) { return ""; }
"""


def image_of(sections):
    """An ELF for a GPU with (name, kind, content, link) for each section, behind an empty one."""
    names, headers, contents = b"\0", [bytes(64)], b""
    for name, kind, content, link in [*sections, (".shstrtab", 3, None, 0)]:
        at = len(names)
        names += name.encode() + b"\0"
        content = names if content is None else content
        headers.append(struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(contents), len(content), link, 0, 0, 0))
        contents += content
    head = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7) + struct.pack(
        "<HHIQQQIHHHHHH", 2, kernel_images.CUDA, 1, 0, 0, 64 + len(contents), 90 << 8, 64, 0, 0, 64, len(headers),
        len(headers) - 1)
    return head + contents + b"".join(headers)


def kernel_image():
    """The image of a kernel "k" with 40 registers, a frame of 16 bytes and parameters of 8 and 4 bytes."""
    attribute = struct.Struct("<BBH")
    words = b"".join(attribute.pack(4, which, 8) + struct.pack("<II", 1, number)
                     for which, number in ((kernel_images.REGISTERS, 40), (kernel_images.FRAME_SIZE, 16)))
    parameters = b"".join(attribute.pack(4, kernel_images.PARAMETER, 12) + struct.pack("<IHHI", 0, i, at, size << 18)
                          for i, at, size in ((1, 8, 4), (0, 0, 8)))
    parameters += attribute.pack(3, kernel_images.PARAMETER_BYTES, 12)
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0)
    return image_of([(".text.k", 1, b"code", 0), (".strtab", 3, b"\0k\0", 0), (".symtab", 2, symbols, 2),
                     (".nv.info", 0x70000000, words, 0), (".nv.info.k", 0x70000000, parameters, 0),
                     (".nv.shared.k", 8, bytes(1024), 0)])


class Images(unittest.TestCase):
    def test_kernel_of_an_image(self):
        image = kernel_image()
        self.assertEqual(kernel_images.image_bytes(image[:64]), len(image))
        found, arch = kernel_images.kernels(image)
        self.assertEqual(arch, 90)
        self.assertEqual(found, {"k": kernel_images.Kernel("k", registers=40, frame=16, static_shared=1024,
                                                           parameters=[(0, 8), (8, 4)], parameter_bytes=12)})

    def test_fat_binary(self):
        elf = kernel_image()
        entry = struct.pack("<HHIQ", kernel_images.FAT_ELF, 1, 64, len(elf)) + bytes(48) + elf
        fat = kernel_images.FAT + struct.pack("<HHQ", 1, 16, len(entry)) + entry
        self.assertEqual(kernel_images.image_bytes(fat[:64]), len(fat))
        self.assertEqual(kernel_images.elf_of(fat), elf)

    def test_what_is_no_image(self):
        for wrong in (b"nothing".ljust(64), kernel_image()[:100]):
            with self.assertRaises(kernel_images.NotAnImage):
                kernel_images.kernels(wrong)

    def test_descriptor_has_the_tensor_s_sizes(self):
        tensor = kernel_calls.Tensor("k", (1366, 2, 128), "bfloat16", 0x70_0000_0000)
        sizes = struct.pack("<5I", 127, 1365, 1, 0, 0)
        content = struct.pack("<QI4I", tensor.address, 0x246522, 32, 16, 0, 0).ljust(32, b"\0") + sizes
        content = content.ljust(55, b"\0") + bytes([63, 127, 0]) + bytes(70)
        descriptor = kernel_standin.Descriptor(content)
        self.assertEqual(descriptor.sizes, [128, 1366, 2])
        self.assertTrue(descriptor.is_of(tensor))
        fewer = kernel_calls.Tensor("k", (1365, 2, 128), "bfloat16", tensor.address)
        self.assertFalse(descriptor.is_of(fewer))


class Calls(unittest.TestCase):
    def test_steps_have_the_operator_s_arguments(self):
        caller = kernel_calls.Caller(MANIFEST, "causal")
        for step, names in SIGNATURES.items():
            for launch in kernel_calls.LAUNCHES:
                self.assertEqual(len(caller.arguments(step, launch)), len(names), step)


class Refusals(unittest.TestCase):
    def check(self, folder):
        return subprocess.run([sys.executable, str(SCRIPTS / "check_kernels.py"), str(folder)], capture_output=True,
                              text=True, timeout=300, check=False)

    def write(self, folder, sha256=None, names=SIGNATURES["forward"]):
        """Makes a folder with one object, which launches nothing."""
        made = pathlib.Path(folder) / "causal_forward.so"
        source = IDLE.replace("SIGNATURE", ", ".join(f"{name}: int32" for name in names))
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=source, text=True,
                       check=True)
        hashes = {made.name: sha256 or hashlib.sha256(made.read_bytes()).hexdigest()}
        (made.parent / "manifest.json").write_text(json.dumps(MANIFEST | {"sha256": hashes}))

    def assert_one_line(self, done, code, words):
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), done.stderr)
        self.assertIn(words, done.stderr)

    def test_folder_without_a_manifest(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_one_line(self.check(folder), 2, "manifest.json cannot be read")

    def test_manifest_of_another_format(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "manifest.json").write_text("{}")
            self.assert_one_line(self.check(folder), 2, "not of the format")

    def test_file_that_has_changed(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, sha256="0" * 64)
            self.assert_one_line(self.check(folder), 1, "is not the file that")

    def test_object_whose_arguments_are_in_another_order(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, names=["mK", "mQ", *SIGNATURES["forward"][2:]])
            self.assert_one_line(self.check(folder), 1, "takes mK mQ")

    def test_object_that_launches_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder)
            self.assert_one_line(self.check(folder), 1, "0 launches instead of one")


if __name__ == "__main__":
    unittest.main()
