"""`distca generate` on folders of Transformers: the logits and the likeliest text are those of Transformers, for every
family and every way to stretch RoPE, before a run and after it. DISTCA_PROGRAM names the program that was built."""

import os
import subprocess
import sys

import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
from test_hugging_face_folders import BOUND, CASES, PROGRAM, load, make_model, prepare, train  # noqa: E402

pytestmark = pytest.mark.skipif(not PROGRAM, reason="DISTCA_PROGRAM names no built distca")
NEW = 60


def generate(*words):
    environment = {**os.environ, "DISTCA_PYTHON": sys.executable}
    done = subprocess.run([PROGRAM, "generate", *map(str, words)], env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.decode().removesuffix("\n")


def ids_of(folder, prompt, *words):
    return [int(word) for word in generate(folder, "--ids", " ".join(map(str, prompt)), *words).split(" ")]


def differences(folder, model, document, out):
    """Between our logits and those of Transformers, of a whole document."""
    generate(folder, "--ids", " ".join(map(str, document)), "--max-new-tokens", 0, "--logits", out)
    with torch.no_grad():
        theirs = model.eval()(input_ids=torch.tensor([document])).logits[0]
    assert 0.5 < theirs.std() < 2
    return (safetensors.load_file(out)["logits"] - theirs).abs()


@pytest.mark.parametrize("case", CASES)
def test_logits_and_the_likeliest_text_are_those_of_transformers(case, tmp_path):
    family, changes, dtype, shard = CASES[case]
    document = prepare(tmp_path)[0]
    model = make_model(family, changes, dtype)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    model.to(dtype).save_pretrained(tmp_path / "model", **({"max_shard_size": shard} if shard else {}))
    model = load(tmp_path / "model")
    assert differences(tmp_path / "model", model, document, tmp_path / "logits").max() < BOUND

    prompt = document[:100]  # longer than a window
    whole = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(torch.tensor([prompt]), **whole)[0].tolist()
    ours = ids_of(tmp_path / "model", prompt, "--max-new-tokens", NEW, "--temperature", 0)
    assert len(ours) == len(prompt) + NEW and ours == theirs
    model.generation_config.eos_token_id = ours[len(prompt) + 7]
    model.generation_config.save_pretrained(tmp_path / "model")
    theirs = model.generate(torch.tensor([prompt]), **whole)[0].tolist()
    assert ids_of(tmp_path / "model", prompt, "--max-new-tokens", NEW, "--temperature", 0) == theirs
    assert len(theirs) < len(ours)

    # And what a run leaves.
    train(tmp_path, tmp_path / "run", "train.steps=2")
    assert differences(tmp_path / "run", load(tmp_path / "run"), document, tmp_path / "logits").max() < BOUND


def test_a_text_is_that_of_the_tokenizer(tmp_path):
    texts = ["Blue whales sing.\n", "naïve café, 東京 😀 ", " a ,  b don't"]
    kinds = {
        "bytes": (tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()),
        "words": (tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()),
    }
    make_model("Llama", {"bos_token_id": 0, "eos_token_id": 1}, torch.float32).save_pretrained(tmp_path)
    for name, (pre_tokenizer, decoder) in kinds.items():
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizer, decoder
        made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
            vocab_size=256, special_tokens=["<s>", "</s>"], show_progress=False))
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        made.save(str(tmp_path / "tokenizer.json"))
        used = made.get_vocab_size()
        for seed in range(5):
            words = ("--max-new-tokens", NEW, "--seed", seed, "--top-k", 100)
            prompt = texts[seed % 3].strip()
            begin = made.encode(prompt).ids
            assert begin[0] == 0 and max(begin) < used
            ids = ids_of(tmp_path, begin, *words)
            said = generate(tmp_path, prompt, *words)
            assert said == prompt + made.decode(ids)[len(made.decode(begin)):], name
