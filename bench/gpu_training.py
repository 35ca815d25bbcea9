"""Stage D of scripts/gpu_check.sh: losses beside the CPU's, speed beside the same Llama in plain PyTorch, and the Python
operators beside the CPU's."""

import json
import math
import shutil

from gpu_check import LEAST_LIMIT_S, ROOT, Missing, no_flash4, train

LOSS_STEPS = 10
TYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}


def relative(got, want):
    """The largest difference of two lists of losses; not a number where one is missing."""
    if len(got) != len(want) or not want:
        return math.nan
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


def losses(stage, dtype, steps=LOSS_STEPS, ranks=None):
    """Ranks as threads on the device beside one worker on the CPU. Without a device: another kernel beside ours."""
    words = (f"model.dtype={TYPES[dtype]}", f"train.steps={steps}", "batch.nano_batches=2", "batch.nano_batch_tokens=1024",
             "batch.max_document_tokens=1024", "model.hidden_size=128", "model.num_hidden_layers=2", "train.validation_every=0")
    device = ("train.device=cuda", "comm.backend=threads") if stage.on_gpu else ("comm.backend=threads", "attention.kernel=aten")
    limit_s = 60 if stage.on_gpu else 120

    def run(name, *more):
        return [line["loss"] for line in train(stage, f"losses_{name}", limit_s, *words, *more)]

    want = run("cpu")
    stage.figure(f"{dtype}: losses beside the CPU's, relative",
                 max(relative(run(f"on_{ranks}", "--workers", ranks, *device), want)
                     for ranks in ranks or ((1, 2, 4) if stage.on_gpu else (2,))))


# --- the contest -------------------------------------------------------------------------------------------------------

WIDE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32768}  # as wide as Llama 3.2 1B, 4 of its 16 layers
NARROW = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256}
LEARNING = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}
SMALLER = 256  # times: what a rehearsal's documents are shorter
WARM, TIMED = 2, 4  # steps
FLASH4_FIGURES = ("first loss beside plain PyTorch's, relative", "tokens/s, times plain PyTorch's")


def text_of(tokens):
    """Bytes that are a little like text: no step sees the same token everywhere."""
    state, out = 1, bytearray()
    while len(out) < tokens:
        state = (state * 1103515245 + 12345) % (1 << 31)
        out += f"{state % 997} ".encode()
    return bytes(out[:tokens])


def config_of(model):
    return model | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                    "max_position_embeddings": 1 << 20, "tie_word_embeddings": False, "initializer_range": 0.02,
                    "hidden_act": "silu"}


def weights(stage, model):
    """A folder with the weights that all begin with, which all contests share."""
    folder = stage.work / "contest_model"
    if not (folder / "model.safetensors").exists():
        config = stage.work / "contest_config.json"
        config.write_text(json.dumps(config_of(model)))
        stage.run("weights", 60, [stage.build / "distca", "init", "--hf-config", config, "--seed", 1, "--out", folder, "--overwrite"])
    return folder


def timed(lines):
    """(losses, seconds of the steps that count) of a training."""
    seconds = [line["step_s"] for line in lines][WARM:]
    if len(seconds) < TIMED:
        raise Missing(f"{len(seconds)} of {TIMED} timed steps")
    return [line["loss"] for line in lines], seconds


def contest(stage, words, tokens, order=None):
    """Both take two turns of WARM + TIMED steps (in a rehearsal one), or those of `order`; the median step of all turns counts.
    Every document is the same text. What a stage without time left cuts after the first turn is left out."""
    model = WIDE if stage.on_gpu else NARROW
    tokens = tokens if stage.on_gpu else tokens // SMALLER
    documents = max(1, (65536 if stage.on_gpu else 256) // tokens)
    limit_s = 120
    folder = stage.work / f"contest_{words}"
    (folder / "text").mkdir(parents=True, exist_ok=True)
    for number in range(documents * 8):
        (folder / f"text/{number:03}.txt").write_bytes(text_of(tokens))
    stage.run("data", 60, [stage.build / "distca", "data", "prepare", "--text", folder / "text", "--glob", "*.txt", "--tokenizer",
                           "byte", "--out", folder / "data", "--overwrite"])
    start = weights(stage, model)
    keys = [f"optimizer.{key}={value}" for key, value in LEARNING.items()]
    keys += [f"model.from={start}", "model.dtype=bfloat16", "optimizer.schedule=constant", "optimizer.warmup_steps=0",
             f"train.steps={WARM + TIMED}", "train.recompute=full", "train.validation_every=0", "data.validation_fraction=0",
             f"batch.nano_batch_tokens={documents * tokens}", f"batch.max_document_tokens={tokens}", "batch.nano_batches=1",
             "comm.backend=threads"]
    if stage.on_gpu:
        keys += ["train.device=cuda"]
    task = {"device": stage.options.device, "folder": str(start), "text": str(folder / "text/000.txt"),
            "documents": documents, "steps": WARM + TIMED, "optimizer": LEARNING}

    def ours(deterministic=False, *more):
        lines = train(stage, f"contest_{words}/run", limit_s, *keys, f"train.deterministic={str(deterministic).lower()}",
                      *more, data=folder / "data")
        if any(line["tokens"] != documents * tokens for line in lines):
            raise Missing(f"a step has {lines[0]['tokens']} tokens, not {documents * tokens}")
        return timed(lines)

    def rival(flash4=False):
        text = stage.run(f"plain PyTorch, {words}", limit_s, [
            stage.options.python, "bench/rival.py", "gpu", json.dumps(task | {"flash4": flash4})])
        return timed([json.loads(line) for line in text.splitlines() if line.startswith("{")])

    turns = {"ours": ours, "rival": rival, "deterministic": lambda: ours(deterministic=True),
             "flash4": lambda: ours(False, "attention.kernel=fa4"), "rival_flash4": lambda: rival(flash4=True)}
    order = list(order or ["ours", "rival"] * (2 if stage.on_gpu else 1) + ["flash4", "rival_flash4", "deterministic"])
    if why := "of a GPU" if not stage.on_gpu else no_flash4(model["head_dim"]):
        order = [who for who in order if "flash4" not in who]
        for figure in FLASH4_FIGURES:
            stage.skip(f"{words}-token documents, FlashAttention 4: {figure}", why)
    seconds, losses = {}, {}
    for number, who in enumerate(order):
        try:
            losses[who], found = turns[who]()
        except Missing as why:
            if who == "flash4":  # it hides no other's figures
                for figure in FLASH4_FIGURES:
                    stage.fail(f"{words}-token documents, FlashAttention 4: {figure}", str(why))
                continue
            if who == "rival_flash4":
                stage.show(f"{words}-token documents, FlashAttention 4 of plain PyTorch", "", str(why))
                continue
            if number < 2 or stage.left_s() > LEAST_LIMIT_S:
                raise Missing(f"{who}: {why}") from None
            stage.show(f"{words}-token documents: {who} once more", "", "cut: the stage has no time left")
            break
        seconds.setdefault(who, []).extend(found)
    middle = {who: sorted(of)[len(of) // 2] for who, of in seconds.items()}
    stage.figure(f"{words}-token documents: first loss beside plain PyTorch's, relative",
                 relative(losses["ours"][:1], losses["rival"][:1]))
    stage.show(f"{words}-token documents, tokens/s", "", ", ".join(
        f"{who} {documents * tokens / of:,.0f} ({min(seconds[who]):.4g} to {max(seconds[who]):.4g} s a step)"
        for who, of in middle.items()))
    stage.figure(f"{words}-token documents: tokens/s, times plain PyTorch's", middle["rival"] / middle["ours"])
    if "flash4" in middle:
        first_loss, rate = (f"{words}-token documents, FlashAttention 4: {figure}" for figure in FLASH4_FIGURES)
        stage.figure(first_loss, relative(losses["flash4"][:1], losses["rival"][:1]))
        stage.figure(rate, middle.get("rival_flash4", middle["rival"]) / middle["flash4"])


# --- the Python operators ----------------------------------------------------------------------------------------------

PYTHON_TYPES, PYTHON_LIMIT_S = ("fp32", "bf16"), 120
PYTHON_FIGURES = {(dtype, figure): f"Python operators, {dtype}: {figure} beside the CPU's, relative"
                  for dtype in PYTHON_TYPES for figure in ("loss", "gradients")}


def package(stage):
    """A folder for PYTHONPATH, with the package of this build."""
    library = stage.build / "python/libdistca_torch.so"
    packed = stage.build / "package"  # by scripts/gpu_build.sh
    if stage.options.as_built and packed.is_dir():
        return packed
    if stage.builds:
        stage.run("the Python package", 240, ["cmake", "--build", stage.build, "-j", stage.options.jobs, "--target",
                                              "distca_python"])
    elif not library.exists():
        raise Missing(f"{stage.options.build} is built without the Python package (-DDISTCA_BUILD_PYTHON=ON)")
    folder = stage.work / "python"
    stage.run("installing the Python package", 60, ["cmake", "--install", stage.build, "--component", "python", "--prefix", folder])
    for source in (ROOT / "python/distca").glob("*.py"):
        shutil.copy(source, folder / "distca")
    return folder


def operators(stage, nccl_way):
    """`nccl_way`: of a stage, what carries messages between two ranks and the environment for it, or Missing."""
    try:
        folder = package(stage)
    except Missing as why:
        for name in PYTHON_FIGURES.values():
            stage.skip(name, str(why))
        return
    runs = [("one rank", ["--ranks", 1], {})]
    try:
        carrier, _, environment = nccl_way(stage)
        nccl = ["--backend", "nccl"] if carrier.startswith("NCCL") else []
        runs.append((f"two ranks over {carrier}", ["--ranks", 2, *nccl], environment))
    except Missing as why:
        stage.skip("Python operators, two ranks", str(why))
    lines = []
    for words, arguments, environment in runs:
        text = stage.run(f"Python operators, {words}", PYTHON_LIMIT_S, [
            stage.options.python, "bench/gpu_python.py", "--device", stage.options.device, *arguments],
            PYTHONPATH=folder, **environment)
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if [line["type"] for line in found] != list(PYTHON_TYPES):
            raise Missing(f"{words}: {len(found)} lines")
        if "--backend" in arguments and not all(line["sent_bytes"] for line in found):
            raise Missing(f"{words}: nothing was balanced")
        stage.show(f"Python operators, {words}", "", ", ".join(
            f"{line['type']} {figure} {line[figure]:.1e}" for line in found for figure in ("loss", "gradients")))
        lines += found
    for (dtype, figure), name in PYTHON_FIGURES.items():
        stage.figure(name, max(line[figure] for line in lines if line["type"] == dtype))
