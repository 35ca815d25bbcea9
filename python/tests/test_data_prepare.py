"""`distca data prepare --jsonl` with the package `tokenizers`, and tokenizers beside a run's weights with transformers.

DISTCA_PROGRAM names the program that was built; without it, nothing here is tested. Bad input and the order of
documents: tests/cli_data_test.py of the project.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PROGRAM = os.environ.get("DISTCA_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="DISTCA_PROGRAM names no built distca")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["Blue whales   sing.\n", "naïve café, 東京 😀 \x00\t", " a ,  b don't", "x" * 300]
SMALL_RUN = ("data.validation_fraction=0.1", "batch.nano_batch_tokens=256", "model.hidden_size=32",
             "model.intermediate_size=64", "model.num_hidden_layers=1", "model.num_attention_heads=4",
             "model.num_key_value_heads=2", "model.head_dim=8", "train.steps=2", "checkpoint.every_steps=2")


def distca(*words):
    environment = {**os.environ, "DISTCA_PYTHON": sys.executable}
    result = subprocess.run([PROGRAM, *map(str, words)], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer in bpe/, and documents in a.jsonl and text/."""
    folder = tmp_path_factory.mktemp("prepare")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator(TEXTS, tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    (folder / "bpe").mkdir()
    made.enable_truncation(3)  # as some tokenizers of Hugging Face have it: not for documents
    made.save(str(folder / "bpe/tokenizer.json"))
    (folder / "bpe/tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}))
    texts = [text * (i % 7 + 1) for i in range(4000) for text in TEXTS]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "text").mkdir()
    for i in range(20):
        (folder / f"text/{i}.txt").write_text(TEXTS[i % 3].replace("\x00", "") * (i + 5))
    return folder


@pytest.fixture(scope="module")
def wanted(folder):
    """The ids of each document."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "bpe/tokenizer.json"))
    tokenizer.no_truncation()
    return [tokenizer.encode(json.loads(line)["text"]).ids + [0] for line in open(folder / "a.jsonl")]


@pytest.fixture
def prepared(folder):
    if not (folder / "set.bin").exists():
        distca("data", "prepare", "--jsonl", folder / "a.jsonl", "--tokenizer", folder / "bpe", "--out", folder / "set",
               "--workers", 1)
    return folder / "set"


def contents(prefix):
    return [prefix.with_suffix(suffix).read_bytes() for suffix in (".bin", ".idx", ".json")]


@pytest.mark.parametrize("workers", [2, 3])
def test_every_number_of_processes_gives_the_same_bytes(folder, prepared, workers):
    distca("data", "prepare", "--jsonl", folder / "a.jsonl", "--tokenizer", folder / "bpe/tokenizer.json", "--out",
           folder / "other", "--workers", workers, "--overwrite")
    assert contents(folder / "other") == contents(prepared)


def test_ids_are_the_tokenizers_with_an_end(wanted, prepared):
    stored = memoryview(prepared.with_suffix(".bin").read_bytes()).cast("H").tolist()
    assert stored == [number for ids in wanted for number in ids]
    shown = json.loads(distca("data", "show", prepared, "--json"))
    assert shown["documents"] == len(wanted)
    assert shown["largest_id"] == max(stored)


def test_megatron_reads_it_and_is_read(folder, wanted, prepared):
    indexed_dataset = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    theirs = indexed_dataset.IndexedDataset(str(prepared))
    assert len(theirs) == len(wanted)
    assert all(theirs[i].tolist() == wanted[i] for i in range(0, len(theirs), 97))
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    builder = indexed_dataset.IndexedDatasetBuilder(str(folder / "megatron.bin"), dtype=numpy.uint16)
    for ids in wanted:
        builder.add_item(torch.tensor(ids))
        builder.end_document()
    builder.finalize(str(folder / "megatron.idx"))
    ours, their_own = (json.loads(distca("data", "show", prefix, "--json")) for prefix in (prepared, folder / "megatron"))
    assert their_own == ours


def loaded(run):
    """Its tokenizer and its model."""
    transformers = pytest.importorskip("transformers")
    return (transformers.AutoTokenizer.from_pretrained(run), transformers.AutoModelForCausalLM.from_pretrained(run))


def test_a_run_and_an_export_carry_the_tokenizer_along(folder, wanted, prepared):
    run = folder / "run"
    distca("train", f"data.prefix={prepared}", f"train.output_dir={run}", "model.vocab_size=400", *SMALL_RUN)
    distca("export", run, "--out", folder / "exported")
    for at in (run, folder / "exported"):
        tokenizer, model = loaded(at)
        assert tokenizer(TEXTS[1]).input_ids + [0] == wanted[1]
        assert tokenizer.eos_token == "<|end|>"
        assert model.generation_config.eos_token_id == 0


def test_the_example_of_hugging_face_trains_on_text_with_the_models_tokenizer(folder, tmp_path):
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
             "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 8, "is_llama_config": True, "rope_interleaved": False, "tie_word_embeddings": True}
    model = tmp_path / "hub"
    shutil.copytree(folder / "bpe", model)
    (model / "config.json").write_text(json.dumps(shape))
    distca("init", "--hf-config", model, "--out", tmp_path / "model")
    distca("data", "prepare", "--text", folder / "text", "--tokenizer", tmp_path / "model", "--out", tmp_path / "set")
    example = pathlib.Path(__file__).parents[2] / "configs/from_hugging_face.toml"
    distca("train", "--config", example, f"model.from={tmp_path / 'model'}", f"data.prefix={tmp_path / 'set'}",
           f"train.output_dir={tmp_path / 'run'}", "--workers", 2, "train.steps=2", "batch.nano_batch_tokens=256",
           "batch.max_document_tokens=256", "optimizer.warmup_steps=1")
    assert "Blue" in distca("generate", tmp_path / "run", "Blue", "--max-new-tokens", 3)
    tokenizer, model = loaded(tmp_path / "run")
    assert tokenizer.eos_token == "<|end|>" and model.config.vocab_size == 300


def test_a_run_on_bytes_has_a_tokenizer_of_bytes(folder):
    distca("data", "prepare", "--text", folder / "text", "--out", folder / "bytes")
    distca("train", f"data.prefix={folder / 'bytes'}", f"train.output_dir={folder / 'byte_run'}", *SMALL_RUN)
    tokenizer, model = loaded(folder / "byte_run")
    assert len(tokenizer) == 256 and tokenizer.all_special_ids == []
    for text in [*TEXTS, "", " ", "\r\n\x7f\u200b"]:
        ids = tokenizer(text).input_ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    assert model.generation_config.eos_token_id is None
    out = model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 9)
