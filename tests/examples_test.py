#!/usr/bin/env python3
"""The examples run (scripts/check_docs.py: public headers show them as they are): examples_test.py PROGRAMS_FOLDER."""

import pathlib
import re
import socket
import subprocess
import sys
import unittest

PROGRAMS = pathlib.Path(sys.argv.pop(1))
SECONDS = 60


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def output_of(*commands):
    """Of programs that run beside one another, each of which must end well."""
    running = [subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for command in commands]
    try:
        said = [one.communicate(timeout=SECONDS)[0] for one in running]
    finally:
        for one in running:
            one.kill()
    for one, text in zip(running, said):
        assert one.returncode == 0, f"{one.args} ended with {one.returncode}: {text}"
    return "".join(said)


class Examples(unittest.TestCase):
    def test_plan(self):
        said = output_of([PROGRAMS / "plan"])
        ends = [[int(number) for number in line.split()[4::2]] for line in said.splitlines() if "holds" in line]
        self.assertEqual(sum(last - first + 1 for first, last in ends), 8192)
        self.assertLessEqual(float(re.search(r"mean: (\S+)", said)[1]), 1.02)
        self.assertRegex(said, r"plan [0-9a-f]{16}\n")

    def expect_two_ranks(self, said):
        found = re.findall(r"rank (\d): O of (\d+) tokens, (\d+) bytes sent", said)
        self.assertEqual(sorted(rank for rank, _, _ in found), ["0", "1"], said)
        self.assertEqual(sum(int(tokens) for _, tokens, _ in found), 2048)
        self.assertGreater(sum(int(sent) for _, _, sent in found), 0)

    def test_core_attention_on_ranks_as_threads(self):
        self.expect_two_ranks(output_of([PROGRAMS / "core_attention"]))

    def test_core_attention_on_two_processes_over_a_group_of_their_own(self):
        port = free_port()
        self.expect_two_ranks(output_of(*([PROGRAMS / "core_attention", rank, port] for rank in (0, 1))))


unittest.main()
