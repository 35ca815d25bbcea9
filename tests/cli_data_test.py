#!/usr/bin/env python3
"""`distca data prepare --jsonl`, with a stand-in for the package `tokenizers`: cli_data_test.py PROGRAM.

The real package: python/tests/test_data_prepare.py.
"""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from array import array

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
SECONDS = 300

# A token is the number of a word in the file, by which all words of a text must be known.
STAND_IN = '''
import json
class Tokenizer:
    def from_file(path):
        self = Tokenizer()
        self.ids = json.load(open(path))
        return self
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self, with_added_tokens): return self.ids
    def token_to_id(self, token): return self.ids.get(token)
    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        result = Tokenizer()
        result.ids = [self.ids[word] for word in text.split()]
        return result
'''


class Prepare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("modules/tokenizers.py", STAND_IN)
        self.ids = {"<end>": 0, **{f"w{i}": i for i in range(1, 300)}}
        self.write("llama/tokenizer.json", json.dumps(self.ids))
        self.write("llama/tokenizer_config.json", '{"eos_token": {"content": "<end>"}}')

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def prepare(self, *words, jsonl=("a.jsonl",), **environment):
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}/modules", **environment}
        if "--tokenizer" not in words:
            words = ("--tokenizer", "llama", *words)
        return subprocess.run([PROGRAM, "data", "prepare", "--jsonl", *jsonl, "--out", "out/set", *words], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS)

    def succeed(self, *words, **more):
        result = self.prepare(*words, **more)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def refused(self, message, *words, code=2, **more):
        before, had_out = self.files(), (self.folder / "out").exists()
        result = self.prepare(*words, **more)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("distca: error: "), result.stderr)
        self.assertIn(message, result.stderr)
        self.assertEqual(self.files(), before)
        self.assertEqual((self.folder / "out").exists(), had_out)

    def files(self, name=""):
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in (self.folder / name).rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}

    def tokens(self, code="H"):
        return array(code, (self.folder / "out/set.bin").read_bytes()).tolist()

    def test_documents_are_texts_with_an_end_and_the_tokenizer_lies_beside_them(self):
        self.write("a.jsonl", '{"text": "w1 w2"}\n\n{"text": ""}\n{"id": 7, "text": "w299"}')
        out = self.succeed()
        self.assertIn("2 documents of JSON lines, 1.80 bytes of text a token; skipped 1 without text; each ends with <end> (id 0)\n", out)
        self.assertIn("2 documents, 5 tokens (uint16,", out)
        self.assertEqual(self.tokens(), [1, 2, 0, 299, 0])
        self.assertEqual(sorted(self.files("out")), ["out/set.bin", "out/set.idx", "out/set.json",
                                                     "out/set.tokenizer/tokenizer.json",
                                                     "out/set.tokenizer/tokenizer_config.json"])
        tokenizer = self.files()["llama/tokenizer.json"]
        self.assertEqual(self.files()["out/set.tokenizer/tokenizer.json"], tokenizer)
        self.assertEqual(json.loads(self.files()["out/set.json"]), {
            "documents": 2, "tokens": 5, "vocab_size": 300, "largest_id": 299, "eod_token": "<end>", "eod_token_id": 0,
            "tokenizer_sha256": hashlib.sha256(tokenizer).hexdigest()})

    def test_another_key_no_end_and_wide_ids(self):
        self.write("big.json", json.dumps({"w1": 1, "w2": 65536}))
        self.write("a.jsonl", '{"body": "w1 w2"}\n{"body": "w2"}\n')
        self.succeed("--tokenizer", "big.json", "--json-key", "body", "--no-append-eod")
        self.assertEqual(self.tokens("i"), [1, 65536, 65536])
        record = json.loads(self.files()["out/set.json"])
        self.assertIsNone(record["eod_token_id"])
        self.write("big.json", json.dumps({"w1": 1, "w2": 65535}))
        self.succeed("--tokenizer", "big.json", "--json-key", "body", "--no-append-eod", "--overwrite")
        self.assertEqual(self.tokens(), [1, 65535, 65535])

    def test_every_number_of_processes_gives_the_same_bytes(self):
        for name in "ab":  # several blocks of about a MiB
            lines = [json.dumps({"text": " ".join(f"w{(i * j) % 299 + 1}" for j in range(1, 60 + i % 50))})
                     for i in range(6000)]
            self.write(f"{name}.jsonl", "\n".join(lines))
        self.assertGreater(len(self.files()["a.jsonl"]), 2 << 20)
        self.succeed("--workers", "1", jsonl=("a.jsonl", "b.jsonl"))
        first = self.files("out")
        for workers in ("2", "3"):
            self.succeed("--workers", workers, "--overwrite", jsonl=("a.jsonl", "b.jsonl"))
            self.assertEqual(self.files("out"), first)
        # The first wrong line is named, whichever process finds one first.
        with open(self.folder / "b.jsonl", "a") as file:
            file.write("\nno\n" + "\n".join(lines[:3000]) + "\nno\n")
        self.refused("b.jsonl line 6001: not JSON", "--workers", "3", "--overwrite", jsonl=("a.jsonl", "b.jsonl"))

    def test_bytes_replace_tokens_with_all_that_belongs_to_them(self):
        self.write("a.jsonl", '{"text": "w1"}')
        self.succeed()
        self.write("text/a.md", "abc")
        result = subprocess.run([PROGRAM, "data", "prepare", "--text", "text", "--out", "out/set", "--overwrite"],
                                cwd=self.folder, capture_output=True, timeout=SECONDS)
        self.assertEqual(result.returncode, 0)
        self.assertEqual(sorted(self.files("out")), ["out/set.bin", "out/set.idx", "out/set.json"])
        self.assertEqual(json.loads(self.files()["out/set.json"]), {
            "documents": 1, "tokens": 3, "vocab_size": 256, "largest_id": ord("c"), "eod_token": None,
            "eod_token_id": None})

    def test_lines_that_hold_no_text_are_named(self):
        for line, message in (("{", "not JSON"), ("[1]", "not a JSON object"), ('{"texts": ""}', "no key 'text'"),
                              ('{"text": 3}', "'text' is no text"), ('{"text": "\\ud800"}', "'text' is no text: it has half of a surrogate"),
                              ("[" * 100000, "not JSON")):
            self.write("a.jsonl", '{"text": "w1"}\n' + line + "\n")
            self.refused(f"a.jsonl line 2: {message}")
        (self.folder / "a.jsonl").write_bytes(b'{"text": "\xff"}')
        self.refused("a.jsonl line 1: not UTF-8: byte 0xff, the line's byte 11")
        self.write("a.jsonl", '{"text": ""}\n')
        self.refused("a.jsonl: holds no text")

    def test_what_is_missing_is_named(self):
        self.refused("a.jsonl: no such file")
        self.write("a.jsonl", '{"text": "w1"}')
        self.refused("absent: no such file; --tokenizer is byte, a tokenizer.json or", "--tokenizer", "absent")
        self.refused("modules/tokenizer.json: no such file", "--tokenizer", "modules")
        self.write("bad/tokenizer.json", "no")
        self.refused("bad/tokenizer.json: not a tokenizer: ", "--tokenizer", "bad")
        self.write("bare/tokenizer.json", json.dumps(self.ids))
        self.refused("names an eos_token to end documents with: give --no-append-eod", "--tokenizer", "bare")
        self.write("bare/tokenizer_config.json", '{"eos_token": "</s>"}')
        self.refused("eos_token '</s>' is not in the vocabulary", "--tokenizer", "bare")
        self.write("modules/tokenizers.py", "raise ImportError")
        self.refused("has no package tokenizers: name a Python that has it with DISTCA_PYTHON")
        self.refused("absent: No such file or directory; this verb needs Python", DISTCA_PYTHON="absent", code=1)
        self.refused("distca-tokenize ended before its work was done: exit code 1", DISTCA_PYTHON="false", code=1)

    def test_a_process_that_is_killed_is_no_bad_input(self):
        self.write("a.jsonl", '{"text": "w1"}')
        self.write("modules/tokenizers.py", STAND_IN.replace("assert not", "import os; os.kill(os.getpid(), 9); assert not"))
        self.refused("a process that tokenizes ended without a result", code=1)

    def test_compressed_files_are_read_and_other_formats_are_named(self):
        lines = b'{"text": "w1 w2"}\n{"text": "w3"}\n'
        for name, module in (("a.jsonl.gz", gzip), ("a.jsonl.bz2", bz2), ("a.jsonl", lzma)):
            (self.folder / name).write_bytes(module.compress(lines))
            self.succeed("--overwrite", jsonl=(name,))
            self.assertEqual(self.tokens(), [1, 2, 0, 3, 0])
        whole = gzip.compress(lines * 1000)
        (self.folder / "a.jsonl").write_bytes(whole[:len(whole) // 2])
        self.refused("a.jsonl: cannot be read: ", "--overwrite")
        for begin, name in ((b"PK\x03\x04", "a zip archive"), (b"PAR1", "Parquet"), (b"\x04\x22\x4d\x18", "LZ4")):
            (self.folder / "a.jsonl").write_bytes(begin + bytes(20))
            self.refused(f"a.jsonl: it is {name}, which is not read here: unpack it", "--overwrite")

    def test_a_pipe_is_read_as_a_file_is(self):
        """`--jsonl <(zcat a.gz)` of a shell, compressed here, too."""
        lines = b'{"text": "w1 w2"}\n{"text": "w3"}\n'
        for data in (lines, gzip.compress(lines)):
            pipe = self.folder / "pipe"
            os.mkfifo(pipe)
            writer = threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True)
            writer.start()
            self.succeed("--overwrite", jsonl=("pipe",))
            writer.join()
            pipe.unlink()
            self.assertEqual(self.tokens(), [1, 2, 0, 3, 0])

    def test_a_folder_stands_for_its_json_lines(self):
        for name, word in (("more/b.jsonl", 2), ("more/deep/c.ndjson", 3), ("more/a.jsonl", 1), ("more/README", 9),
                           ("more/d.txt", 4), ("last.jsonl", 5)):
            self.write(name, '{"text": "w%d"}\n' % word)
        self.succeed("--no-append-eod", jsonl=("last.jsonl", "more"))
        self.assertEqual(self.tokens(), [5, 1, 2, 3])
        self.succeed("--no-append-eod", "--overwrite", "--glob", "*.txt", jsonl=("more",))
        self.assertEqual(self.tokens(), [4])
        self.write("none/a.txt", "w1")
        self.refused("none: no file in it is called *.jsonl; --glob names others", "--overwrite", jsonl=("none",))

    def test_nothing_is_read_twice_lost_or_replaced_by_what_it_becomes(self):
        self.write("a.jsonl", '{"text": "w1"}\n')
        self.write("in/b.jsonl", '{"text": "w2"}\n')
        (self.folder / "in/linked").symlink_to("../llama")
        out = self.succeed("--no-append-eod", jsonl=("a.jsonl", "in", "in/b.jsonl", "./a.jsonl"))
        self.assertEqual(self.tokens(), [1, 2])
        self.assertIn("skipped 1 link to folders or nothing", out)
        # The tokenizer of the set is that of the set that replaces it.
        self.succeed("--no-append-eod", "--overwrite", "--tokenizer", "out/set.tokenizer", jsonl=("in",))
        self.assertEqual(self.tokens(), [2])
        self.assertEqual(self.files()["out/set.tokenizer/tokenizer.json"], self.files()["llama/tokenizer.json"])
        self.write("out/set.json", '{"text": "w3"}\n')
        self.refused("out/set.json: no data set made this file", "--overwrite", jsonl=("out/set.json",))

    def test_files_of_text_are_documents(self):
        for name, text in (("a.txt", "w1 w2\nw3"), ("b/c.txt", "w4"), ("e.txt", ""), ("f.md", "w9")):
            self.write("books/" + name, text)
        (self.folder / "books/x.txt").write_bytes(b"w1\0")
        (self.folder / "books/y.txt").write_bytes(b"\xff\xfe")
        (self.folder / "books/z.txt").write_bytes(gzip.compress(b"w5"))
        (self.folder / "books/p.txt").write_bytes(b"PK\x03\x04" + bytes(20))
        words = [PROGRAM, "data", "prepare", "--text", "books", "--glob", "*.txt", "--tokenizer", "llama", "--out", "out/set"]
        result = subprocess.run(words, cwd=self.folder, env={**os.environ, "PYTHONPATH": f"{self.folder}/modules"},
                                capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("3 files of text, 1.50 bytes of text a token; skipped 1 without text and 3 binary or not UTF-8; "
                      "each ends with <end> (id 0)\n", result.stdout)
        self.assertEqual(self.tokens(), [1, 2, 3, 0, 4, 0, 5, 0])

    def test_a_safe_path_loses_no_package(self):
        self.write("a.jsonl", '{"text": "w1"}')
        self.succeed(PYTHONSAFEPATH="1")
        self.assertEqual(self.tokens(), [1, 0])

    def test_words_that_do_not_fit_are_refused(self):
        self.write("a.jsonl", '{"text": "w1"}')
        self.refused("--jsonl needs --tokenizer: a tokenizer.json or", "--tokenizer", "byte")
        self.refused("give either --text, files of which each is a document, or --jsonl", "--text", "llama")
        self.write("out/set.json", "{}")
        self.refused("out/set.json is there already")


if __name__ == "__main__":
    unittest.main()
