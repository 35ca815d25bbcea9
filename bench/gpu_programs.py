"""What the stages of scripts/gpu_check.sh share: programs, GoogleTest, data, trainings. Each raises Missing, in one line."""

import json
import re
import shutil

from gpu_check import ROOT, Missing

# Paths of programs in the build folder whose targets have another name.
TARGETS = {"bench/cuda_attention": "bench_cuda_attention", "bench/cuda_layer": "bench_cuda_layer"}
PROBE = """
import sys, torch
facts = [f"PyTorch {torch.__version__}", f"CUDA {torch.version.cuda}"]
if torch.cuda.is_available():
    facts += [f"cuDNN {torch.backends.cudnn.version()}", "NCCL %d.%d.%d" % torch.cuda.nccl.version()]
    facts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(", ".join(facts))
sys.exit("PyTorch sees no CUDA device" if sys.argv[1] == "cuda" and not torch.cuda.is_available() else 0)
"""


def probe(stage):
    """Versions of what is there; clocks are read, never set."""
    if shutil.which("nvidia-smi"):
        stage.run("driver", 30, ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem", "--format=csv"])
    elif stage.on_gpu:
        raise Missing("there is no nvidia-smi on the PATH")
    return stage.run("versions", 120, [stage.options.python, "-c", PROBE, stage.options.device]).splitlines()[-1]


def built(stage, programs, keep_going=False):
    """On a GPU, configures and builds with offline/; else looks whether the programs are there. With `keep_going`, one that
    cannot be built keeps no other from being there."""
    if not stage.on_gpu:
        for program in programs:
            if not (stage.build / program).exists():
                raise Missing(f"{stage.options.build}/{program} is not built: make build")
        return f"{len(programs)} programs of {stage.options.build}, as they are"
    if not (ROOT / "offline").is_dir():
        raise Missing("there is no offline/: make it with scripts/offline_bundle.sh where apt is, and carry it")
    stage.run("configure", 90, ["cmake", "-G", "Ninja", "-B", stage.build, "-DCMAKE_BUILD_TYPE=Release",
                                f"-DCMAKE_PREFIX_PATH={ROOT}/offline", f"-DDISTCA_PYTHON={stage.options.python}",
                                "-DDISTCA_BUILD_PYTHON=ON"])
    targets = [TARGETS.get(program, program.rpartition("/")[2]) for program in programs]
    stage.run("build", 400, ["cmake", "--build", stage.build, "-j", stage.options.jobs, "--target", *targets,
                             *(("--", "-k", 0) if keep_going else ())])
    return f"{len(targets)} targets, {stage.options.jobs} jobs"


def tests(stage, program, cases, limit_s, before=(), **environment):
    """Runs cases of a GoogleTest program; passes if at least one ran and none missed its device."""
    text = stage.run(f"{program} {cases}", limit_s, [*before, stage.build / program, "--gtest_color=no",
                                                     f"--gtest_filter={cases}"], **environment)
    if "no CUDA device" in text:
        raise Missing("skipped: no CUDA device")
    passed = len(re.findall(r"^\[       OK", text, flags=re.MULTILINE))
    if passed == 0:
        raise Missing(f"no case matches {cases}")
    return f"{passed} cases"


def prepared(stage):
    """The prefix of a small data set: our own documents."""
    prefix = stage.work / "docs"
    if not prefix.with_suffix(".idx").exists():
        stage.run("data", 60, [stage.build / "distca", "data", "prepare", "--text", "docs", "--glob", "*.md", "--tokenizer", "byte",
                               "--out", prefix])
    return prefix


def train(stage, name, limit_s, *words, data=None, environment=None):
    """Trains; the lines of metrics.jsonl."""
    folder = stage.work / name
    stage.run(f"training {name}", limit_s, [
        stage.build / "distca", "train", f"data.prefix={data or prepared(stage)}", f"train.output_dir={folder}",
        "train.overwrite=true", *words], **(environment or {}))
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
