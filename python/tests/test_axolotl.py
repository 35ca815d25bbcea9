"""Axolotl's own training with the plugin, in two processes against one without it. Skipped where Axolotl is missing.

Axolotl runs here without a GPU: CUDA_VISIBLE_DEVICES is empty, ACCELERATE_USE_CPU is set as `accelerate launch --cpu` sets
it, and another plugin, `axolotl_on_cpu`, stands in for what else asks for a GPU, and makes the model float64.
"""

import json
import math
import os
import pathlib
import random
import socket
import subprocess
import sys

import pytest

pytest.importorskip("axolotl")

import safetensors.torch  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402
from axolotl.utils.dict import DictDefault  # noqa: E402
from transformers_model import make, worst_gradient  # noqa: E402

import distca.axolotl  # noqa: E402

LENGTHS = [5, 200, 31, 20, 90, 17, 30, 64, 150, 7, 7, 40, 180, 11, 26, 9]
OF_FILE = {"ds_type": "json", "type": "completion", "field": "text"}
CONFIG = {  # an epoch of 15 packed rows is 3 steps of 4, in one process and where one row is dealt at once
    "base_model": "model", "datasets": [{"path": "train.jsonl", **OF_FILE}],
    "test_datasets": [{"path": "eval.jsonl", "split": "train", **OF_FILE}],
    "dataset_prepared_path": "prepared", "sequence_len": 256, "sample_packing": True, "attn_implementation": "sdpa",
    "micro_batch_size": 1, "gradient_accumulation_steps": 4, "num_epochs": 1, "learning_rate": 1e-3, "optimizer": "adamw_torch",
    "lr_scheduler": "constant", "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps",
    "save_steps": 3, "bf16": False, "tf32": False, "seed": 7, "dataset_num_proc": 1,
}
COMPARED = {"loss": 1e-6, "grad_norm": 1e-12, "eval_loss": 1e-6}  # Transformers sums losses in float32
WITHOUT = {"plugins": ["axolotl_on_cpu.Plugin"]}
WITH = {"plugins": [*WITHOUT["plugins"], "distca.axolotl.Plugin"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """It has a model of random weights, its tokenizer, and documents."""
    folder, chosen = tmp_path_factory.mktemp("axolotl"), random.Random(3)
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 64)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
                                         pad_token="<unk>").save_pretrained(folder / "model")
    make().save_pretrained(folder / "model")
    for name, lengths in (("train", LENGTHS * 4), ("eval", LENGTHS)):
        texts = [" ".join(f"w{chosen.randint(3, 63)}" for _ in range(length)) for length in lengths]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def environment_of(rank, ranks, port):
    paths = [str(pathlib.Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    alone = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
             "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    return alone if ranks == 1 else {
        **alone, "ACCELERATE_USE_CPU": "true", "WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def trained(folder, ranks, **settings):
    """(what rank 0 said, [(name, value)] of what it logged, the weights, its counts of targets) of a training by Axolotl."""
    name = f"run{len(list(folder.glob('run*.yml')))}"
    config = {**CONFIG, **settings, "output_dir": name}
    (folder / f"{name}.yml").write_text(json.dumps(config))  # which is YAML, too
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    try:
        for rank in range(ranks):
            with open(folder / f"{name}.{rank}.txt", "w") as output:
                processes.append(subprocess.Popen(
                    [sys.executable, "-m", "axolotl.cli.train", f"{name}.yml"], cwd=folder, stdout=output,
                    stderr=subprocess.STDOUT, env=environment_of(rank, ranks, port)))
        for process in processes:
            process.wait(timeout=900)
    finally:
        for process in processes:
            process.kill()
    said = [(folder / f"{name}.{rank}.txt").read_text() for rank in range(ranks)]
    assert all(process.returncode == 0 for process in processes), "\n".join(said)[-4000:]
    state = json.loads((folder / name / "checkpoint-3/trainer_state.json").read_text())
    weights = next(folder.glob(f"{name}/checkpoint-3/*model.safetensors"))
    logged = state["log_history"]
    return (said[0], [(key, entry[key]) for entry in logged for key in COMPARED if key in entry],
            safetensors.torch.load_file(weights), [entry["tokens/trainable"] for entry in logged if "tokens/trainable" in entry])


def check(got, want):
    (_, logged, weights, _), (_, wanted, want_weights, _) = got, want
    assert [name for name, _ in wanted].count("loss") == 3 and wanted[-1][0] == "eval_loss"
    for (name, value), (of, want) in zip(logged, wanted, strict=True):
        assert name == of and math.isclose(value, want, rel_tol=COMPARED[name]), (name, logged, wanted)
    assert worst_gradient(weights, want_weights) < 1e-12


LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize("block, adapter", [
    ({"shard": True, "at_once": 1}, {}),
    ({"shard": True, "at_once": 1, "nano_batches": 2}, LORA),
])
def test_two_processes_have_the_losses_and_weights_of_one(folder, block, adapter):
    two = trained(folder, 2, **WITH, distca=block, **adapter)
    line = f"distca: attention is balanced over 2 ranks, nano_batches = {block.get('nano_batches', 1)}; a step deals the tokens"
    assert line in two[0]
    alone = trained(folder, 1, **WITHOUT, **adapter)
    check(two, alone)
    # Axolotl counts the first token of a document, too.
    assert len(two[3]) == len(alone[3]) > 0 and all(.8 * want < got <= want for got, want in zip(two[3], alone[3])), (two[3], alone[3])


def test_attention_alone_is_balanced_without_shard(folder):
    balanced = trained(folder, 2, **WITH, max_steps=3)
    assert "distca: attention is balanced over 2 ranks, nano_batches = 1; each rank keeps its documents" in balanced[0]
    check(balanced, trained(folder, 2, **WITHOUT, max_steps=3))


def config(**changes):
    return DictDefault({"sample_packing": True, "distca": {"shard": True}, **changes})


@pytest.mark.parametrize("changes, line", [
    ({"sample_packing": False}, "sample_packing is not true: padded batches are not served"),
    ({"context_parallel_size": 2}, "context_parallel_size = 2: attention is shared out already"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size = 2: ranks have unequal heads"),
    ({"eval_sample_packing": False}, "eval_sample_packing = False: batches that are dealt are packed"),
    ({"cut_cross_entropy": True}, "cut_cross_entropy shifts labels"),
])
def test_settings_that_are_not_served_are_refused(changes, line):
    distca.axolotl.Plugin().pre_model_load(config())
    with pytest.raises(ValueError, match=line):
        distca.axolotl.Plugin().pre_model_load(config(**changes))


@pytest.mark.parametrize("block, line", [({"shards": True}, "shards"), ({"at_once": 1}, "it needs distca.shard: true")])
def test_wrong_settings_of_the_block_are_named(block, line):
    with pytest.raises(ValueError, match=line):
        distca.axolotl.Arguments(distca=block)


@pytest.mark.parametrize("block, rows", [({}, 16), ({"shard": True}, 16), ({"shard": True, "at_once": 2}, 8)])
def test_axolotl_counts_steps_by_the_rows_that_are_dealt_at_once(block, rows):
    of_file = config(distca=block, batch_size=16, world_size=4)
    assert distca.axolotl.Plugin().load_datasets(of_file) is None and of_file.batch_size == rows


@pytest.mark.parametrize("at_once", [0, 3, 8])
def test_at_once_divides_the_ranks(at_once):
    of_file = config(distca={"shard": True, "at_once": at_once}, batch_size=16, world_size=4)
    with pytest.raises(ValueError, match=f"distca.at_once = {at_once}: how many of 4 ranks' batches make a step, a divisor of it"):
        distca.axolotl.Plugin().load_datasets(of_file)


def test_a_file_that_says_otherwise_is_followed():
    given, said = DictDefault({}), DictDefault({"pad_to_sequence_len": True, "fa_varlen_kwargs_in_collator": True})
    for of_file in (given, said):
        distca.axolotl.Plugin().register(of_file)
    assert set(given.values()) == {False} and set(said.values()) == {True}
