#!/usr/bin/env python3
"""The rows of bench/attention.py."""

import unittest

from attention_rows import ISAS, SHARDS, name, pairs, rows, shards_of


class Rows(unittest.TestCase):
    def test_have_different_names(self):
        names = [name(row) for row in rows(ISAS)]
        self.assertEqual(len(set(names)), len(names))
        self.assertIn("lengths fp32 d64 8:8 512", names)

    def test_take_the_best_instructions_of_the_machine_and_in_fp32_avx2_beside_avx512(self):
        for available, wanted in ((ISAS, {"fp32": ["avx512", "avx2"], "bf16": ["avx512_bf16"]}),
                                  (ISAS[2:], {"fp32": ["avx2"], "bf16": ["avx2"]})):
            for row in rows(available):
                isas = wanted[row.format]
                self.assertEqual(row.isas, isas if row.kind == "lengths" else isas[:1])

    def test_long_ones_compute_the_first_heads(self):
        for row in rows(ISAS):
            self.assertLessEqual(1, row.kv_used)
            self.assertLessEqual(row.kv_used, row.kv_heads)
            self.assertTrue(row.kind == "shards" or row.length > 1024 or row.kv_used == 8, name(row))

    def test_shards_have_the_work_of_one_sequence_at_contexts_about_as_long(self):
        for queries in SHARDS:
            shards = shards_of(queries)
            for position, count in shards:
                self.assertEqual((count, position % 128), (queries, 0))
                self.assertLess(abs(position + count - 8192), 5 * 128)
            self.assertAlmostEqual(pairs(shards) / (8192 * 8193 / 2), 1, delta=0.1)

    def test_pairs_are_those_that_the_mask_allows(self):
        self.assertEqual(pairs([(0, 3), (10, 2)]), 1 + 2 + 3 + 11 + 12)


if __name__ == "__main__":
    unittest.main()
