"""Stage D of scripts/gpu_check.sh: the Python operators on the device beside the CPU's."""

import json
import shutil

from gpu_check import ROOT, Missing

TYPES = ("fp32", "bf16")
FIGURES = ("loss", "gradients")
LIMIT_S = 120


def name_of(dtype, figure):
    return f"Python operators, {dtype}: {figure} beside the CPU's, relative"


def package(stage):
    """A folder for PYTHONPATH, with the package of this build."""
    library = stage.build / "python/libdistca_torch.so"
    if stage.on_gpu:
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
        for dtype in TYPES:
            for figure in FIGURES:
                stage.skip(name_of(dtype, figure), str(why))
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
        text = stage.run(f"Python operators, {words}", LIMIT_S, [
            stage.options.python, "bench/gpu_python.py", "--device", stage.options.device, *arguments],
            PYTHONPATH=folder, **environment)
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if [line["type"] for line in found] != list(TYPES):
            raise Missing(f"{words}: {len(found)} lines")
        if "--backend" in arguments and not all(line["sent_bytes"] for line in found):
            raise Missing(f"{words}: nothing was balanced")
        stage.show(f"Python operators, {words}", "", ", ".join(
            f"{line['type']} {figure} {line[figure]:.1e}" for line in found for figure in FIGURES))
        lines += found
    for dtype in TYPES:
        for figure in FIGURES:
            stage.figure(name_of(dtype, figure), max(line[figure] for line in lines if line["type"] == dtype))
