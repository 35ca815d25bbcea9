"""RoPE and windows mean the same to every version of Transformers in what a run, `distca export` and `distca init` write,
or a line names the versions to which they do not; and what they read means what it means to the installed version.
DISTCA_PROGRAM names the program that was built."""

import json
import math
import os
import shutil
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

PROGRAM = os.environ.get("DISTCA_PROGRAM")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="DISTCA_PROGRAM names no built distca")
SIZES = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 32,
         "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "initializer_range": 0.3, "tie_word_embeddings": False}
THETA = 5000.0
LENGTH = {"original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LENGTH}
YARN = {"rope_type": "yarn", "factor": 3.7, **LENGTH}
CASES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn_of_the_models_length": {"rope_type": "yarn", "factor": 4.0},
    "yarn_attention": {**YARN, "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn_mscale": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.4},
    "yarn_exact_ramp": {**YARN, "truncate": False},
    # What others write, and Transformers reads in its own way.
    "yarn_attn_factor": {**YARN, "attn_factor": 2.0, "finetuned": True},
    "yarn_zeros": {**YARN, "mscale": 0.8, "mscale_all_dim": 0, "beta_fast": 0, "beta_slow": None},
    "yarn_whole_floats": {**YARN, "factor": 4, "original_max_position_embeddings": 64.0},
    "yarn_null": {**YARN, "factor": None, "truncate": None},
}
# First version with such a function, and what it does: whether it reads original_max_position_embeddings of yarn,
# whether it takes yarn's factor from that, and whether it knows mscale and truncate.
VERSIONS = {"4.43": (False, False, False, False), "4.45": (False, False, False, False), "4.48": (False, False, False, False),
            "4.51": (True, True, True, False), "4.55": (True, True, True, True), "4.57": (True, False, True, True)}
# model_type: (class, its other keys, the first version that reads rope_scaling for it, or "" for all that know it)
FAMILIES = {"mistral": ("Mistral", {"sliding_window": 40}, "4.48"), "qwen2": ("Qwen2", {}, "4.45"),
            "qwen3": ("Qwen3", {}, "")}
ALL, SOME = "full_attention", "sliding_attention"
# name: (model_type, layer_types, words of a line or None, versions of WINDOW_VERSIONS that it names)
WINDOW_CASES = {
    "qwen2_without": ("qwen2", [ALL, ALL], None, ()),
    "qwen3_without": ("qwen3", [ALL, ALL], None, ()),
    "qwen2_everywhere": ("qwen2", [SOME, SOME], "sdpa and eager of transformers 4.42 to 4.45 and 4.48", ("4.43", "4.48")),
    "qwen3_everywhere": ("qwen3", [SOME, SOME], None, ()),
    "qwen2_full_first": ("qwen2", [ALL, SOME, SOME], "before 4.53, whose windows differ where attention is not flash",
                         ("4.43", "4.46", "4.48", "4.49", "4.52")),
    "qwen3_in_turns": ("qwen3", [SOME, ALL, SOME], "before 4.53, whose windows differ\n", ("4.51", "4.52")),
}
# For each model_type, the versions whose sdpa gives it other windows than the version before.
WINDOW_VERSIONS = {"qwen2": ("4.43", "4.46", "4.48", "4.49", "4.52", "4.53"), "qwen3": ("4.51", "4.52", "4.53")}


def of_version(version, config):
    """Frequencies and attention factor that a version of Transformers 4 computes from a config.json."""
    reads_length, divides, has_mscale, has_truncate = VERSIONS[version]
    rope, theta, dim = config.get("rope_scaling") or {}, config.get("rope_theta", 10000.0), config["head_dim"]
    plain = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    kind = rope.get("rope_type", "default")
    if kind == "default" or version < FAMILIES.get(config["model_type"], (None, None, ""))[2]:
        return plain, 1.0
    factor, attention = rope["factor"], rope.get("attention_factor")
    if kind == "linear":
        return [f / factor for f in plain], 1.0
    length = config["max_position_embeddings"]
    if kind == "llama3":
        low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        smooth = [min(1.0, max(0.0, (length * f / (2 * math.pi) - low) / (high - low))) for f in plain]
        return [f * ((1 - s) / factor + s) for f, s in zip(plain, smooth)], 1.0
    if reads_length and "original_max_position_embeddings" in rope:
        length = rope["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / length if divides else factor
    if attention is None:
        def grown(scale):
            return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
        both = has_mscale and rope.get("mscale") and rope.get("mscale_all_dim")
        attention = grown(rope["mscale"]) / grown(rope["mscale_all_dim"]) if both else grown(1)

    def pair(turns):
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
    first, last = pair(rope.get("beta_fast") or 32), pair(rope.get("beta_slow") or 1)
    if not has_truncate or rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = [min(1.0, max(0.0, (i - first) / ((last - first) or 0.001))) for i in range(dim // 2)]
    return [f * (r / factor + 1 - r) for f, r in zip(plain, ramp)], attention


def windows_of_version(version, config):
    """[layer] How many keys a query of a Qwen sees in sdpa of a version of Transformers 4; None means all."""
    layers, used = config["num_hidden_layers"], config.get("use_sliding_window", False)
    window = config.get("sliding_window", 4096)
    if version in ("4.43", "4.48"):
        return [None] * layers  # the mask has no window
    if not used and version not in ("4.49", "4.51"):  # which read sliding_window alone
        window = None
    if version < "4.53":
        return [window] * layers
    types = config.get("layer_types") or [ALL if i < config["max_window_layers"] else SOME for i in range(layers)]
    return [window if kind == SOME else None for kind in types]


def of_installed(folder):
    made = LlamaRotaryEmbedding(transformers.AutoConfig.from_pretrained(folder))
    return made.inv_freq.tolist(), made.attention_scaling


def same(one, other):
    return one[1] == pytest.approx(other[1], rel=1e-6) and one[0] == pytest.approx(other[0], rel=1e-5)


def config_of(rope, spelling):
    if spelling == 5:
        return {**SIZES, "rope_parameters": {**rope, "rope_theta": THETA}}
    kind = "type" if "factor" in rope and rope["factor"] == 3.7 else "rope_type"  # the older name, too
    old = {kind if key == "rope_type" else key: value for key, value in rope.items()}
    return {**SIZES, "rope_theta": THETA, **({} if rope["rope_type"] == "default" else {"rope_scaling": old})}


def distca(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rope")
    (folder / "a.txt").write_text("ten words of it are in this one text now. " * 30)
    distca("data", "prepare", "--text", folder / "a.txt", "--out", folder / "data")
    return folder / "data"


def write(config, data, folder, runs=True):
    """The output of `distca init`, of a run that begins there and of its export, and the config.json that each writes."""
    (folder / "given").mkdir()
    (folder / "given/config.json").write_text(json.dumps(config))
    said = {"init": distca("init", "--hf-config", folder / "given", "--out", folder / "init")}
    if runs:
        said["run"] = distca("train", f"model.from={folder / 'init'}", f"data.prefix={data}", "data.validation_fraction=0",
                             f"train.output_dir={folder / 'run'}", "batch.nano_batch_tokens=512", "train.steps=1",
                             "checkpoint.every_steps=1", "comm.backend=threads")
        said["export"] = distca("export", folder / "run", "--out", folder / "export")
    return said, {name: json.loads((folder / name / "config.json").read_text()) for name in said}


@pytest.mark.parametrize("spelling", [4, 5])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_means_the_same_to_every_version(case, spelling, data, tmp_path):
    said, written = write(config_of(CASES[case], spelling), data, tmp_path, runs=spelling == 5)
    want = of_installed(tmp_path / "given")
    otherwise = CASES[case].get("truncate", True) in (False, None)
    for name, config in written.items():
        assert ("not known to transformers before 4.55" in said[name]) == otherwise
        assert same(of_installed(tmp_path / name), want), name
        for version in VERSIONS:
            knows = not otherwise or version >= "4.55"
            assert same(of_version(version, config), want) == knows, (name, version, config)


def of_family(kind, **changes):
    return {**SIZES, "architectures": [f"{FAMILIES[kind][0]}ForCausalLM"], "model_type": kind, **FAMILIES[kind][1], **changes}


@pytest.mark.parametrize("kind", FAMILIES)
def test_versions_that_do_not_stretch_rope_are_named(kind, data, tmp_path):
    name, _, first = FAMILIES[kind]
    config = of_family(kind, rope_parameters={**LLAMA3, "rope_theta": THETA})
    said, written = write(config, data, tmp_path)
    want = of_installed(tmp_path / "given")
    for place, config in written.items():
        line = f"config.json: rope_scaling of {name} is not known to transformers before {first}"
        assert (line in said[place]) == (first != ""), place
        for version in VERSIONS:
            assert same(of_version(version, config), want) == (version >= first), (place, version)


@pytest.mark.parametrize("case", WINDOW_CASES)
def test_versions_whose_windows_differ_are_named(case, data, tmp_path):
    kind, types, words, named = WINDOW_CASES[case]
    slides = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 0, "layer_types": types}
    config = of_family(kind, num_hidden_layers=len(types), **(slides if SOME in types else {}))
    said, written = write(config, data, tmp_path)
    want = [40 if layer == SOME else None for layer in types]
    for place in ("run", "export"):  # init leaves keys of windows as they are given
        assert words in said[place] if words else "is not known to" not in said[place], said[place]
        for version in WINDOW_VERSIONS[kind]:
            same_windows = windows_of_version(version, written[place]) == want
            assert same_windows == (version not in named), (place, version, written[place])


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("yarn")])
def test_what_is_read_means_what_it_means_to_transformers(case, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(config_of(CASES[case], 5)))
    distca("init", "--hf-config", config, "--out", tmp_path / "model")
    shutil.copy(config, tmp_path / "model")
    ids = [(7 * i * i) % 251 for i in range(200)]
    distca("generate", tmp_path / "model", "--ids", " ".join(map(str, ids)), "--max-new-tokens", 0, "--logits",
           tmp_path / "logits")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids])).logits[0]
    ours = safetensors.load_file(tmp_path / "logits")["logits"]
    assert (ours - theirs).abs().max() < 1e-4 * theirs.std()
