#!/usr/bin/env python3
"""The examples run (scripts/check_docs.py: public headers show them as they are): examples_test.py PROGRAMS_FOLDER."""

import concurrent.futures
import pathlib
import re
import socket
import sys
import unittest

from run_command import output_of

PROGRAMS = pathlib.Path(sys.argv.pop(1))
SECONDS = 300


def outputs_of(*commands):
    """Of programs that run beside one another."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return "".join(threads.map(lambda command: output_of(*command, timeout=SECONDS), commands))


class Examples(unittest.TestCase):
    def test_plan(self):
        said = outputs_of([PROGRAMS / "plan"])
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
        self.expect_two_ranks(outputs_of([PROGRAMS / "core_attention"]))

    def test_core_attention_on_two_processes_over_a_group_of_their_own(self):
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.expect_two_ranks(outputs_of(*([PROGRAMS / "core_attention", rank, port] for rank in (0, 1))))


unittest.main()
