"""`distca train model.from=FOLDER` begins with a folder of Transformers and trains as Transformers does, and `distca
evaluate` finds its loss: the program that build/release has, on the CPU."""

import copy
import json
import os
import random
import shutil
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers")

PROGRAM = os.environ.get("DISTCA_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="DISTCA_PROGRAM names no built distca")
SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
         "tie_word_embeddings": False}
LENGTHS = [230, 120, 70, 50, 25, 12, 4, 1]  # 512 tokens: each step is an epoch
STEPS = 5
BOUND = 1e-4


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **more}}


ORIGINAL = {"original_max_position_embeddings": 64}
WINDOW = {"sliding_window": 40}
THREE = {**WINDOW, "num_hidden_layers": 3}  # layers whose windows differ
# name: (family, changes of its configuration, type in which it is saved, bytes of a file)
CASES = {
    "llama": ("Llama", rope("default"), torch.float32, None),
    "linear": ("Llama", rope("linear", factor=3.0), torch.float32, None),
    "llama3": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
               torch.float16, None),
    "yarn": ("Llama", rope("yarn", factor=8.0, **ORIGINAL), torch.float32, None),
    "mistral": ("Mistral", WINDOW, torch.bfloat16, None),
    "qwen2": ("Qwen2", {}, torch.float32, "60KB"),
    "qwen2_window": ("Qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 0}, torch.float32, None),
    "qwen2_windows": ("Qwen2", {**THREE, "use_sliding_window": True, "max_window_layers": 1}, torch.float32, None),
    "ministral": ("Ministral", {**THREE, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
                  torch.float32, None),
    "qwen3": ("Qwen3", {}, torch.float32, None),
    "qwen3_tied_yarn": ("Qwen3", {"tie_word_embeddings": True, **rope("yarn", factor=4.0, truncate=False, **ORIGINAL)},
                        torch.bfloat16, "60KB"),
}


def make_model(family, changes, dtype):
    """Of random weights, which are exact in `dtype`; its logits have about unit variance."""
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
            else:
                weight.normal_(1 if "norm" in name else 0, 0.2, generator=generator)
            weight.copy_(weight.to(dtype))
    return model


def prepare(folder):
    """A data set of bytes; gives the documents."""
    random.seed(3)
    (folder / "text").mkdir()
    documents = []
    for index, length in enumerate(LENGTHS):
        documents.append([random.randrange(97, 123) for _ in range(length)])
        (folder / "text" / f"{index}.txt").write_bytes(bytes(documents[-1]))
    distca("data", "prepare", "--text", folder / "text", "--tokenizer", "byte", "--out", folder / "data")
    return documents


def distca(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(folder, out, *words):
    """Losses, learning rates, and what was printed."""
    printed = distca("train", f"model.from={folder / 'model'}", f"data.prefix={folder / 'data'}",
                     f"train.output_dir={out}", "data.validation_fraction=0", "batch.nano_batch_tokens=512",
                     f"train.steps={STEPS}", "optimizer.warmup_steps=1", "comm.backend=threads", *words)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], [line["lr"] for line in lines], printed


def reference(model, documents, rates):
    """Losses of AdamW steps on all documents."""
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    targets = sum(len(document) - 1 for document in documents)
    losses = []
    for rate in rates:
        optimizer.zero_grad()
        total = 0.0
        for document in documents:
            if len(document) == 1:
                continue
            ids = torch.tensor([document])
            loss = torch.nn.functional.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="sum")
            (loss / targets).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(total / targets)
    return losses


def logits_of(model, documents):
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([documents[0]])).logits


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def worst(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_training_goes_as_in_transformers(case, tmp_path):
    family, changes, dtype, shard = CASES[case]
    documents = prepare(tmp_path)
    model = make_model(family, changes, dtype)
    saved = copy.deepcopy(model).to(dtype)  # which rounds tables of RoPE, too
    saved.save_pretrained(tmp_path / "model", **({"max_shard_size": shard} if shard else {}))
    assert (shard is None) == (tmp_path / "model/model.safetensors").exists()
    logits = logits_of(model, documents)
    assert 0.5 < logits.std() < 2

    # Nothing trained: the same weights and the same model.
    _, _, printed = train(tmp_path, tmp_path / "untrained", "train.steps=0")
    assert f"starting from the weights of {tmp_path / 'model'}: " in printed
    untrained = load(tmp_path / "untrained")
    assert type(untrained) is type(model)
    assert (logits_of(untrained, documents) - logits).abs().max() < BOUND

    losses, rates, _ = train(tmp_path, tmp_path / "one")
    want = reference(model, documents, rates)
    assert want[-1] < want[0] - 0.1
    assert worst(losses, want) < BOUND
    trained = logits_of(load(tmp_path / "one"), documents)
    # The first updates of AdamW magnify the rounding of gradients that are almost zero, so a few logits differ by more.
    assert (trained - logits_of(model, documents)).square().mean().sqrt() < 3 * BOUND

    more = ["--workers", "2", "servers.dedicated=1"] if changes.get("num_hidden_layers") == 3 else \
        ["--workers", "4", "parallel.pipeline_model_parallel_size=2"]
    for words in ([], more):
        found = json.loads(distca("evaluate", tmp_path / "model", "--data", tmp_path / "data", "--json", *words))
        assert found["targets"] == sum(len(document) - 1 for document in documents)
        assert abs(found["loss"] - want[0]) < BOUND
    many, _, _ = train(tmp_path, tmp_path / "many", *more, "parallel.use_distributed_optimizer=true")
    assert worst(many, losses) < BOUND
    # And on from there: what a run leaves is a folder, too.
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "many").rename(tmp_path / "model")
    first, _, _ = train(tmp_path, tmp_path / "again", "train.steps=1")
    assert first[0] < losses[-1]


def test_a_run_goes_on_without_the_weights_it_began_with(tmp_path):
    prepare(tmp_path)
    make_model("Qwen3", {}, torch.float32).save_pretrained(tmp_path / "model")
    losses, _, _ = train(tmp_path, tmp_path / "whole", "checkpoint.every_steps=3")
    (tmp_path / "model/model.safetensors").unlink()
    again, _, _ = train(tmp_path, tmp_path / "rest", f"--resume={tmp_path / 'whole/checkpoints/step_000003'}")
    assert again == losses[3:]
    distca("export", tmp_path / "whole/checkpoints/step_000003", "--out", tmp_path / "exported")
    assert type(load(tmp_path / "exported")).__name__ == "Qwen3ForCausalLM"


def test_many_workers_compute_what_one_does(tmp_path):
    prepare(tmp_path)
    for family in ("Qwen2", "Qwen3"):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        make_model(family, {}, torch.float32).save_pretrained(tmp_path / "model")
        distca("verify", "--workers", "2", f"model.from={tmp_path / 'model'}", f"data.prefix={tmp_path / 'data'}",
               "data.validation_fraction=0", "batch.nano_batch_tokens=512")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_export_and_init_write_is_loaded(dtype, tmp_path):
    documents = prepare(tmp_path)
    make_model("Llama", {}, torch.float32).save_pretrained(tmp_path / "model")
    train(tmp_path, tmp_path / "run", "train.steps=2")
    written = ["--dtype", dtype, "--max-shard-gb", "0.00006"]
    distca("export", tmp_path / "run", "--out", tmp_path / "exported", *written)
    assert (tmp_path / "exported/model.safetensors.index.json").exists()
    got = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype="auto")
    assert got.dtype == getattr(torch, dtype)
    want = load(tmp_path / "run").to(got.dtype)
    for (name, ours), theirs in zip(got.named_parameters(), want.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    text = bytes(documents[0]).decode()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer(text)["input_ids"] == documents[0]
    said = transformers.pipeline("text-generation", str(tmp_path / "exported"))(text, max_new_tokens=4, do_sample=False)
    assert said[0]["generated_text"].startswith(text)

    distca("init", "--hf-config", tmp_path / "run", "--out", tmp_path / "fresh", *written)
    fresh = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fresh", dtype="auto")
    assert fresh.dtype == got.dtype and fresh.model.embed_tokens.weight.float().std() > 0.01
