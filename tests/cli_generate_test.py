#!/usr/bin/env python3
"""`distca generate` on a run, with a stand-in for the package `tokenizers`: cli_generate_test.py PROGRAM.

The real package and transformers: python/tests/test_generate.py. Bad input: bad_input_test.cc.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
SECONDS = 300
VOCABULARY = 300
TRAINED = ("batch.nano_batch_tokens=512", "batch.max_document_tokens=384", f"model.vocab_size={VOCABULARY}", "model.hidden_size=32",
           "model.intermediate_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=4", "model.num_key_value_heads=2",
           "model.head_dim=8", "model.initializer_range=0.3", "model.sliding_window=20", "train.steps=1", "data.validation_fraction=0")

# Its ids are the bytes of UTF-8. It puts 'B' before a text, and 'e' is the end of one, which is not shown.
STAND_IN = '''
class Tokenizer:
    def from_file(path):
        if open(path).read() != "stand-in": raise Exception("no\\nstand-in")
        return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def encode(self, text, add_special_tokens):
        result = Tokenizer()
        result.ids = list(("B" * add_special_tokens + text).encode())
        return result
    def decode(self, ids):
        return bytes(i for i in ids if i < 256 and i != ord("e")).decode(errors="replace")
'''


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "modules").mkdir()
        (cls.folder / "modules/tokenizers.py").write_text(STAND_IN)
        (cls.folder / "text").mkdir()
        for i in range(3):
            (cls.folder / f"text/{i}.txt").write_text(f"def f{i}(x): return x  # naïve 東京\n" * (5 + i))
        cls.distca("data", "prepare", "--text", "text", "--out", "data")
        cls.distca("train", "data.prefix=data", "train.output_dir=run", *TRAINED)
        cls.config = json.loads((cls.folder / "run/config.json").read_text())

    @classmethod
    def distca(cls, *words, code=0, **environment):
        environment = {**os.environ, "PYTHONPATH": str(cls.folder / "modules"), **environment}
        result = subprocess.run([PROGRAM, *map(str, words)], cwd=cls.folder, env=environment, capture_output=True, timeout=SECONDS)
        assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
        return result

    def generate(self, *words, run="run", says=""):
        """What is printed, but for the end of its last line."""
        result = self.distca("generate", run, *words)
        self.assertEqual(result.stderr.decode(), says)
        out = result.stdout.decode()
        self.assertTrue(out.endswith("\n"))
        return out[:-1]

    def ids(self, *words, **more):
        return [int(word) for word in self.generate(*words, **more).split(" ")]

    def logits(self, ids):
        """[tokens][vocabulary]; for any number of tokens."""
        long = self.copy("long", config={**self.config, "max_position_embeddings": None})
        self.ids("--ids", ids, "--max-new-tokens", 0, "--logits", "logits.safetensors", run=long)
        data = (self.folder / "logits.safetensors").read_bytes()
        length, = struct.unpack("<q", data[:8])
        self.assertEqual(json.loads(data[8:8 + length])["logits"]["dtype"], "F32")
        values = array("f", data[8 + length:])
        rows = [values[at:at + VOCABULARY].tolist() for at in range(0, len(values), VOCABULARY)]
        self.assertEqual([len(row) for row in rows], [VOCABULARY] * len(ids.split()))
        return rows

    def copy(self, name, **files):
        """Another folder with the run's weights; files as objects or text."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.folder / "run", self.folder / name)
        for stem, contents in files.items():
            text = contents if isinstance(contents, str) else json.dumps(contents)
            (self.folder / name / f"{stem}.json").write_text(text)
        return name

    def test_a_text_goes_on_and_the_seed_decides_how(self):
        prompt = "def 東"
        said = self.generate(prompt, "--max-new-tokens", 60)
        self.assertTrue(said.startswith(prompt))
        self.assertGreater(len(said), len(prompt))
        self.assertEqual(self.generate(prompt, "--max-new-tokens", 60), said)
        self.assertNotEqual(self.generate(prompt, "--max-new-tokens", 60, "--seed", 2), said)
        # The ids are those of the text: bytes, and ids above them that no byte has.
        ids = self.ids("--ids", " ".join(map(str, prompt.encode())), "--max-new-tokens", 60)
        self.assertEqual(len(ids), len(prompt.encode()) + 60)
        self.assertGreater(max(ids), 255)
        text = b"".join(bytes([i]) if i < 256 else "\ufffd".encode() for i in ids).decode(errors="replace")
        self.assertEqual(said, text)
        self.assertEqual(self.generate(prompt, "--max-new-tokens", 0), prompt)

    def test_without_temperature_the_likeliest_follows_as_the_whole_document_has_it(self):
        prompt = [100, 101, 102]
        ids = self.ids("--ids", "100, 101 102", "--max-new-tokens", 50, "--temperature", 0)
        self.assertEqual(ids[:3], prompt)
        for drawn in (("--top-k", 1), ("--top-p", 1e-6)):
            self.assertEqual(self.ids("--ids", "100 101 102", "--max-new-tokens", 50, *drawn, "--seed", 5), ids)
        rows = self.logits(" ".join(map(str, ids)))
        likeliest = [row.index(max(row)) for row in rows]
        self.assertEqual(likeliest[2:-1], ids[3:])
        self.assertGreater(len(set(ids[3:])), 1)
        many = " ".join(str(i % 256) for i in range(2000))  # more tokens than are computed at a time
        words = many.split()
        whole, tail = self.logits(" ".join(words[:1500])), self.logits(" ".join(words[500:1500]))
        # Two layers look back 38 tokens, so they see the same; and only the first is computed in two parts.
        self.assertLess(max(abs(a - b) for a, b in zip(whole[1400], tail[900])), 1e-3)

    def test_it_ends_after_the_token_that_ends_texts(self):
        ids = self.ids("--ids", "7", "--max-new-tokens", 40)
        for ends in (ids[9], [VOCABULARY - 1 if VOCABULARY - 1 not in ids else 0, ids[9]]):
            known = ends if isinstance(ends, list) else [ends]
            first = next(at for at, token in enumerate(ids) if at > 0 and token in known)
            for files in ({"generation_config": {"eos_token_id": ends}}, {"generation_config": {}, "config": None}):
                if "config" in files:
                    files["config"] = {**self.config, "eos_token_id": ends}
                self.assertEqual(self.ids("--ids", "7", "--max-new-tokens", 40, run=self.copy("ends", **files)), ids[:first + 1])

    def test_it_ends_where_the_model_has_no_more_positions(self):
        short = self.copy("short", config={**self.config, "max_position_embeddings": 6})
        ids = self.ids("--ids", "7 8", "--max-new-tokens", 40)
        self.assertEqual(self.ids("--ids", "7 8", "--max-new-tokens", 40, run=short, says=
                         "distca: ended at position 6, the model's last (max_position_embeddings)\n"), ids[:6])
        self.assertEqual(self.ids("--ids", "7 8", "--max-new-tokens", 4, run=short), ids[:6])

    def test_another_tokenizer_is_asked(self):
        other = self.copy("other", tokenizer="stand-in", generation_config={"bos_token_id": None, "eos_token_id": None})
        prompt = "d\u00e9f \U0001f600"
        for seed in range(3):  # characters that are cut, and such that are not
            words = (prompt, "--max-new-tokens", 60, "--temperature", 0.7, "--seed", seed)
            mine = self.ids("--ids", " ".join(map(str, prompt.encode())), *words[1:])
            shown = bytes(i for i in mine[len(prompt.encode()):] if i < 256 and i != ord("e"))
            self.assertEqual(self.generate(*words, run=other), prompt + shown.decode(errors="replace"))
        # A folder that does not say that there is no such token: the tokenizer's own come first.
        config = {key: value for key, value in self.config.items() if key != "bos_token_id"}
        theirs = self.copy("theirs", tokenizer="stand-in", generation_config={"eos_token_id": ord("e")}, config=config)
        ids = self.ids("--ids", " ".join(map(str, b"Bdef")), "--max-new-tokens", 40, run=theirs)
        shown = bytes(i for i in ids[4:] if i < 256 and i != ord("e"))
        self.assertEqual(self.generate("def", "--max-new-tokens", 40, run=theirs), "def" + shown.decode(errors="replace"))

    def test_a_tokenizer_that_fails_is_named(self):
        def refused(run, message, code=2, **environment):
            result = self.distca("generate", run, "def", code=code, **environment)
            self.assertEqual(result.stdout, b"")
            self.assertIn(message, result.stderr.decode().splitlines()[-1])
        broken = self.copy("broken", tokenizer="no")
        refused(broken, "broken/tokenizer.json: not a tokenizer: no stand-in")
        refused(broken, "distca-tokenize ended before its work was done: exit code 1", 1, DISTCA_PYTHON="false")
        refused(broken, "absent: No such file or directory; this verb needs Python", 1, DISTCA_PYTHON="absent")
        (self.folder / "none").mkdir()
        (self.folder / "none/tokenizers.py").write_text("raise ImportError")
        refused(broken, "has no package tokenizers: name a Python that has it", PYTHONPATH=str(self.folder / "none"))


if __name__ == "__main__":
    unittest.main()
