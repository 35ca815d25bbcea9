#!/usr/bin/env python3
"""Checkpoints, weights, config.json, tokenizers and data sets that are damaged, through every verb that reads them.

    tests/harness/damaged_files.py build/release/distca --seconds 3600 [--python PYTHON]

Exit code 0 to 3, one line, no crash, no hang, nothing half-written; what is refused leaves all files as they were.
PYTHON is one that has the package tokenizers; without it, a stand-in plays the package.
"""

import json
import os
import shutil

from mutations import damage
from seeded import clear_end, count, data_set, expect, files_below, main, run, succeed

MOST_BYTES = 6 << 30  # of memory: what a damaged number asks for is refused, not taken from others

# Words with spaces between; $T trains a step of the small model.
TRAIN = ("train", "data.validation_fraction=0.1", "batch.nano_batch_tokens=256", "train.validation_every=0", "optimizer.warmup_steps=0",
         "optimizer.schedule=constant", "checkpoint.every_steps=1", "parallel.use_distributed_optimizer=true", "--workers 2",
         "comm.backend=threads")
SHAPE = ("model.hidden_size=32", "model.intermediate_size=48", "model.num_hidden_layers=2", "model.num_attention_heads=4",
         "model.num_key_value_heads=2", "model.head_dim=8")
RESUMED = ("data.prefix=data/set_1", *SHAPE, "train.steps=3")
FRESH = ("data.prefix=data/tokens", "train.steps=1", "train.output_dir=fresh")
JSONL = "data prepare --jsonl lines.jsonl --out made/set"
GENERATE = "generate {} def --max-new-tokens 2"

# (how often, pattern of files, commands of which one or two are run)
READERS = (
    (4, "run/checkpoints/step_000002/*", (
        "checkpoint show run", "checkpoint show run/checkpoints/step_000002 --json --tensors", "checkpoint check run",
        "export run --out made", (*TRAIN, *RESUMED, "train.output_dir=run", "--resume"),
        (*TRAIN, *RESUMED, "train.output_dir=fresh", "--resume run/checkpoints/step_000002"))),
    (2, "run/m*", (GENERATE.format("run"), (*TRAIN, *RESUMED, "train.output_dir=run", "--resume"))),
    (1, "run/config.json", (GENERATE.format("run"), "init --hf-config run --out made", (*TRAIN, *FRESH, "model.from=run"))),
    (1, "run/config.toml", ("train --dry-run --config run/config.toml", (*TRAIN, *RESUMED, "train.output_dir=run", "--resume"))),
    (3, "model/*.json", (GENERATE.format("model"), "init --hf-config model --out made", (*TRAIN, *FRESH, "model.from=model"))),
    (3, "model/*.safetensors", (GENERATE.format("model"), (*TRAIN, *FRESH, "model.from=model"))),
    (2, "model/tok*", (GENERATE.format("model"), "init --hf-config model --out made", f"{JSONL} --tokenizer model")),
    (2, "lines.jsonl", (f"{JSONL} --tokenizer model",)),
    (1, "text_1/0*", ("data prepare --text text_1 --out made/set",)),
    (2, "data/set_1.*", ("data show data/set_1 --json", "plan data.prefix=data/set_1 --workers 2 batch.nano_batch_tokens=256",
                         (*TRAIN, *SHAPE, *FRESH, "data.prefix=data/set_1"))),
    (2, "data/tokens.*", ("data show data/tokens", (*TRAIN, *SHAPE, *FRESH))),
    (1, "data/tokens.tokenizer/*", ("data show data/tokens", (*TRAIN, *SHAPE, *FRESH))),
)

# Words are the ids of a vocabulary; as tests/cli_data_test.py, with what generate needs.
STAND_IN = '''
import json
class Tokenizer:
    def from_file(path):
        self = Tokenizer()
        self.known = json.load(open(path))["model"]["vocab"]
        return self
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_vocab(self, with_added_tokens): return self.known
    def token_to_id(self, token): return self.known.get(token)
    def encode(self, text, add_special_tokens):
        result = Tokenizer()
        result.ids = [self.known.get(word, 1) for word in text.split()]
        return result
    def decode(self, ids): return " ".join(map(str, ids))
'''


def words_of(command):
    return (command if isinstance(command, str) else " ".join(command)).split()


def prepare(options):
    """The undamaged files, which a case copies."""
    base = options.shared / "base"
    data_set(options.program, base)
    options.environment = {"DISTCA_PYTHON": options.python} if options.python else {"PYTHONPATH": options.shared / "modules"}
    (options.shared / "modules").mkdir()
    (options.shared / "modules/tokenizers.py").write_text(STAND_IN)

    def distca(command, **environment):
        succeed([options.program, *words_of(command)], base, **options.environment, **environment)

    distca((*TRAIN, *RESUMED, "train.steps=2", "train.output_dir=run", "checkpoint.keep_last=0"))
    distca("export run --out model --max-shard-gb 0.00004")
    vocabulary = {"<end>": 0, **{f"w{i}": i for i in range(1, 256)}}
    (base / "model/tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
            {"id": 0, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w1"}}))
    (base / "model/tokenizer_config.json").write_text('{"eos_token": {"content": "<end>"}, "tokenizer_class": "PreTrainedTokenizerFast"}')
    (base / "model/generation_config.json").write_text('{"eos_token_id": [0, 3], "temperature": 0.7}')
    (base / "lines.jsonl").write_text("\n".join(json.dumps({"text": f"w{i} w{i + 1} w3", "id": i}) for i in range(200)))
    distca("data prepare --jsonl lines.jsonl --out data/tokens --tokenizer model")


def half_written(files):
    return [name for name in files if name.endswith(".tmp") or os.path.basename(name).startswith(".")]


def play(draw, folder, options):
    work = folder / "work"
    shutil.copytree(options.shared / "base", work)
    [(_, pattern, commands)] = draw.choices(READERS, [often for often, _, _ in READERS])
    path = draw.choice(sorted(file for file in work.glob(pattern) if file.is_file()))
    whole = path.read_bytes()
    how = damage(draw, path) if draw.random() < 0.95 else "is as it was"
    place = path.relative_to(work)
    before = files_below(work)
    for command in draw.sample(commands, min(len(commands), 2)):
        words = words_of(command)
        outcome = run([options.program, *words], work, memory_bytes=MOST_BYTES, **options.environment)
        what = f"{place} {how}:"
        line = clear_end(outcome, what)
        expect(outcome.code == 0 or how != "is as it was", what, outcome)
        after = files_below(work)
        expect(not half_written(after), what, "left", half_written(after), outcome)
        if outcome.code == 2:
            changed = [name for name in before.keys() | after.keys() if before.get(name, b"") != after.get(name, b"")]
            expect(not changed, what, "refused, and changed", changed, outcome)
        if words[:2] == ["checkpoint", "check"] and path.suffix == ".safetensors" and path.is_file() and path.read_bytes() != whole:
            expect(outcome.code != 0, what, "not found by", outcome)
        count(f"ended with {outcome.code}")
        if options.show:
            print(f"{outcome.code}  {place} {how}: {' '.join(words[:3])}: {line}")
        if after != before:
            return  # another command would not find the damage alone


def add_options(words):
    words.add_argument("--python", help="one that has the package tokenizers")
    words.add_argument("--show", action="store_true", help="print what each gets")


if __name__ == "__main__":
    main(__doc__.splitlines()[0], play, prepare, add_options)
