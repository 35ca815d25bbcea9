#!/usr/bin/env python3
"""A run that goes on several times, each time with other settings, learns what one worker learns that is never stopped.

    tests/harness/resume_chains.py build/release/distca --seconds 3600

Every key that may change when a run goes on (on_resume of distca/config/config_keys.cc) has values in SETTINGS or a reason in
NOT_CHANGED, or this ends with its name. In fp64: losses, norms and validation losses to 1e-9, weights to 1e-7 of a
tensor's largest. The export of the last checkpoint has the bytes that the run's end has written.
"""

import json
import re
import shutil

from seeded import ROOT, count, data_set, expect, main, metrics, run, succeed, tensors

LOSS_BOUND, WEIGHT_BOUND = 1e-9, 1e-7
MOST_TRIES = 20  # of settings that do not fit each other

# What a key may become when a run goes on, beside its default.
SETTINGS = {
    "optimizer.beta1": (0.8, 0.95), "optimizer.beta2": (0.9, 0.99), "optimizer.decay_steps": (9, 30), "optimizer.eps": (1e-7,),
    "optimizer.lr": (3e-3, 1e-4, 0), "optimizer.max_grad_norm": (0, 0.3), "optimizer.min_lr_ratio": (0, 1),
    "optimizer.schedule": ("linear", "constant", "wsd"), "optimizer.warmup_steps": (0, 5), "optimizer.weight_decay": (0, 0.5),
    "optimizer.wsd_decay_steps": (1, 2),
    "data.bad_tokens": ("skip_target", "1"), "train.bad_step": ("skip",), "train.spike_factor": (1e6,), "train.max_skipped_steps": (0, 3),
    "train.exit_duration_in_mins": (1000,),
    "train.validation_every": (0, 1, 2), "train.validation_nano_batches": (1, 3), "train.overwrite": ("true",),
    "train.trace": ("trace.json",), "train.trace_first_step": (1, 3), "train.trace_steps": (1, 2),
    "checkpoint.every_steps": (1, 2, 3), "checkpoint.keep_last": (0, 1, 2), "checkpoint.keep_every": (2,),
    "checkpoint.async": ("false",), "checkpoint.grace_s": (60,),
    "comm.backend": ("gloo", "threads", "threads"), "comm.timeout_s": (300,), "comm.startup_timeout_s": (300,), "comm.grace_s": (1,),
    "parallel.tensor_model_parallel_size": (1, 2, 2, 4), "parallel.sequence_parallel": ("false",),
    "parallel.pipeline_model_parallel_size": (1, 2, 3, 4), "parallel.pipeline_schedule": ("1f1b", "mixed"),
    "parallel.outstanding_weight_gradients": (0, 2),
    "parallel.use_distributed_optimizer": ("true",), "parallel.overlap_grad_reduce": ("false",),
    "parallel.bucket_mb": (0.001, 0.02, 1),
    "cluster.ranks_per_node": (1, 2),
    "train.overlap": ("none", "within"), "train.threads_per_rank": (2,), "train.recompute": ("selective", "full"),
    "train.loss_chunk_tokens": (1, 100), "train.deterministic": ("false",),
    "plan.layout": ("balanced", "sequential", "wlb", "karmarkar-karp", "per-document-cp"),
    "plan.scheduler": ("greedy", "local", "per-document-cp", "wlb", "karmarkar-karp", "wlb-cp2"), "plan.tolerance": (0, 0.3, "auto"),
    "plan.split_kv": ("true",), "plan.spread": ("true",), "plan.profile": ("h200",), "plan.max_tokens_per_worker": (4096,),
    "plan.max_memory_gib": (4,), "plan.bandwidth_mb_per_s": (100,), "plan.fill_ticks": ("spread",),
    "servers.dedicated": (1, 2), "servers.in_place": ("false",), "servers.reweight": ("true",),
    "exchange.grad_dtype": ("accumulator",), "exchange.keys": ("keep", "redispatch"),
    "attention.kernel": ("aten", "reference"),
    # Drawn by `settings`, because they follow from others or name files.
    "data.prefix": (), "model.from": (), "train.output_dir": (), "train.steps": (), "parallel.pipeline_layers": (),
    "servers.capacity": (),
}
NOT_CHANGED = {"train.device": "this machine may have no GPU"}
LEARNING = ("optimizer.", "data.bad_tokens", "train.bad_step", "train.spike_factor")  # keys with kTrain: the reference follows


def check_that_all_keys_are_covered(options):
    source = (ROOT / "distca/config/config_keys.cc").read_text()
    changes = dict(re.findall(r'"(\w+\.\w+)",\s+[^\s,]*&[\w.]+\)?,\s+k(Fixed|Free|Train|Bits)\b', source))
    expect(len(changes) > 60, "config_keys.cc has", len(changes), "keys with on_resume: this search is out of date")
    section, keys = "", []
    for line in succeed([options.program, "train", "--print-config"], options.shared).out.splitlines():
        if match := re.match(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r"(\w+) = ", line):
            keys.append(f"{section}.{match[1]}")
    expect(len(keys) > 50, "--print-config shows", len(keys), "keys: this search is out of date")
    for key in keys:
        change = changes.get(key, "Fixed")
        known = key in SETTINGS or key in NOT_CHANGED
        expect(known == (change != "Fixed"), key, "must not change when a run goes on, and is in SETTINGS" if known else
               "may change when a run goes on, and is not in SETTINGS")
        expect((change == "Train") == (key.startswith(LEARNING) or key == "train.steps"), key, "is in LEARNING, or should be")
    expect(not (SETTINGS.keys() | NOT_CHANGED.keys()) - set(keys), "no keys:", (SETTINGS.keys() | NOT_CHANGED.keys()) - set(keys))


class Chain:
    """One model and data set; the words of its runs."""

    def __init__(self, draw, folder, options):
        self.draw, self.folder, self.program = draw, folder, options.program
        self.layers = draw.randint(1, 4)
        self.steps = draw.randint(3, 7)
        window = draw.choice((0, 0, 0, 2, 100))
        types = [draw.choice(("full_attention", "sliding_attention")) for _ in range(self.layers)]
        sets = [data_set(self.program, folder, draw.randint(1, 99) + 100 * i) for i in range(draw.choice((1, 1, 2, 3)))]
        self.sets = [(draw.randint(1, 9) / 10, prefix) for prefix in sets]
        nano_batch = draw.choice((64, 256, 512))
        self.fixed = {
            "model.dtype": "float64", "model.model_type": draw.choice(("llama", "qwen2", "qwen3")), "model.hidden_size": 32,
            "model.intermediate_size": 48, "model.num_hidden_layers": self.layers, "model.num_attention_heads": 4,
            "model.num_key_value_heads": draw.choice((1, 2, 4)), "model.head_dim": 8,
            "model.tie_word_embeddings": draw.choice(("true", "false")), "model.sliding_window": window,
            "model.layer_types": ",".join(types) if window and draw.random() < 0.5 else "",
            "batch.nano_batch_tokens": nano_batch, "batch.nano_batches": draw.randint(1, 5),
            "batch.max_document_tokens": draw.choice((0, nano_batch // 2, 17)), "batch.seed": draw.randint(1, 99),
            "train.seed": draw.randint(1, 99), "data.validation_fraction": 0.2, "model.max_position_embeddings": 1024}
        # A length of its own, so that a part of the run has the rates of the whole.
        self.learning = {"optimizer.warmup_steps": 2, "optimizer.decay_steps": self.steps + 2}

    def blend(self, copied):
        """The data set, or another place with the same contents."""
        prefixes = []
        for share, prefix in self.sets:
            if copied:
                other = prefix.parent / "copied" / prefix.name
                other.parent.mkdir(exist_ok=True)
                for file in prefix.parent.glob(prefix.name + ".*"):
                    shutil.copy(file, other.parent)
                prefix = other
            prefixes.append((share, prefix))
        return str(prefixes[0][1]) if len(prefixes) == 1 else " ".join(f"{share} {prefix}" for share, prefix in prefixes)

    def relearnt(self):
        """The settings that decide what is trained, some of them others than before."""
        keys = [key for key in SETTINGS if key.startswith(LEARNING)]
        changed = {key: self.draw.choice(SETTINGS[key]) for key in self.draw.sample(keys, self.draw.randint(1, 3))}
        changed |= {"optimizer.wsd_decay_steps": 1} if changed.get("optimizer.schedule") == "wsd" else {}
        return {**self.learning, **changed}

    def settings(self):
        """(workers, settings) of a part of the run."""
        draw, some = self.draw, self.draw.choice((0.05, 0.15, 0.3))
        free = [key for key, values in SETTINGS.items() if values and not key.startswith(LEARNING)]
        chosen = {key: draw.choice(SETTINGS[key]) for key in free if draw.random() < some}
        stages = min(chosen.get("parallel.pipeline_model_parallel_size", 1), self.layers)
        if stages > 1:
            chosen["parallel.pipeline_model_parallel_size"] = stages
            if draw.random() < 0.3:
                cuts = [0, *sorted(draw.sample(range(1, self.layers), stages - 1)), self.layers]
                chosen["parallel.pipeline_layers"] = ",".join(str(b - a) for a, b in zip(cuts, cuts[1:]))
        else:
            chosen.pop("parallel.pipeline_model_parallel_size", None)
        tensor = chosen.get("parallel.tensor_model_parallel_size", 1)
        workers = stages * draw.choice((1, 1, 2, 2, 3, 4, 7) if stages * tensor == 1 else (1, 1, 2))
        if draw.random() < 0.2:
            servers = workers + chosen.get("servers.dedicated", 0) // tensor
            chosen["servers.capacity"] = ",".join(str(draw.choice((0, 1, 50, 100))) for _ in range(servers))
        chosen.setdefault("comm.backend", "threads")
        return workers * tensor, chosen

    def train(self, run_folder, end, settings, workers=1, source=None):
        """Trains up to a step; goes on from `source`, a run or a checkpoint."""
        chosen = {"data.prefix": self.blend(False), "checkpoint.every_steps": 1, "train.validation_every": 1,
                  "train.validation_nano_batches": 2, **self.fixed, **settings, "train.steps": end, "train.output_dir": run_folder}
        words = [self.program, "train", "--workers", workers, *(f"{key}={value}" for key, value in chosen.items())]
        return run([*words, *([] if source is None else ["--resume", source])], self.folder)

    def refused(self, outcome, end, settings, workers):
        """Whether the settings do not fit each other, resumed or not: then others are drawn. Anything else is a fault."""
        if outcome.code == 0:
            return False
        expect(outcome.code == 2, outcome)
        alone = self.train(self.folder / "alone", end, settings, workers)
        shutil.rmtree(self.folder / "alone", ignore_errors=True)
        expect(alone.code == 2 and alone.err == outcome.err, "refused where it goes on alone:", outcome, "\nalone:", alone)
        count("settings refused")
        return True


def compare(got, want, what):
    expect(got.keys() == want.keys(), f"{what}: steps {sorted(got)} instead of {sorted(want)}")
    for step, line in want.items():
        for figure in ("loss", "grad_norm", "validation_loss"):
            a, b = got[step].get(figure), line.get(figure)
            if figure == "validation_loss" and (a is None or got[step].get("other_validation")):
                continue
            expect(abs(a - b) <= LOSS_BOUND * abs(b), f"{what}: {figure} of step {step} is {a}, not {b}")


def compare_weights(got, want, what):
    got, want = tensors(got), tensors(want)
    expect(got.keys() == want.keys(), what, "other tensors")
    for name, values in want.items():
        difference = max(abs(a - b) for a, b in zip(got[name], values, strict=True))
        expect(difference <= WEIGHT_BOUND * max(map(abs, values)) + 1e-300, f"{what}: {name} differs by {difference}")


def play(draw, folder, options):
    chain = Chain(draw, folder, options)
    cuts = sorted(draw.sample(range(1, chain.steps), draw.randint(1, min(3, chain.steps - 1))))
    ends, learning = [*cuts, chain.steps], [chain.learning]
    for _ in cuts:
        learning.append(chain.relearnt() if draw.random() < 0.25 else learning[-1])

    for number, end in enumerate(ends):  # the reference stops only where it learns otherwise
        if end == chain.steps or learning[number + 1] != learning[number]:
            outcome = chain.train(folder / "straight", end, learning[number], source=folder / "straight" if
                                  (folder / "straight").exists() else None)
            if outcome.code == 2 and "optimizer." in outcome.err and learning[number] != chain.learning:
                count("rates refused")
                return
            expect(outcome.code == 0, outcome)
    want = metrics(folder / "straight")

    run_folder, source, got = folder / "run_0", None, {}
    for number, end in enumerate(ends):
        for _ in range(MOST_TRIES):
            workers, settings = chain.settings()
            settings |= learning[number]
            if draw.random() < 0.2:
                settings["data.prefix"] = chain.blend(True)
            if source and draw.random() < 0.1:
                settings["model.from"] = folder / "straight"
            target = folder / f"run_{number}" if draw.random() < 0.3 else run_folder
            outcome = chain.train(target, end, settings, workers, source)
            if not chain.refused(outcome, end, settings, workers):
                break
        else:
            count("parts without settings")
            return
        run_folder = target
        lines = metrics(run_folder)
        if settings.get("train.validation_nano_batches", 2) != 2:
            for line in lines.values():
                line["other_validation"] = True
        got |= {step: line for step, line in lines.items() if step not in got}
        source = run_folder
        again = draw.randint(1, end)  # from an earlier one, if it is there and what is learned did not change since
        earlier = run_folder / f"checkpoints/step_{again:06}"
        if draw.random() < 0.2 and end < chain.steps and earlier.exists() and all(one == learning[0] for one in learning):
            source = earlier
            got = {step: line for step, line in got.items() if step <= again}
        expect("not saved" not in outcome.err, outcome)
        count("parts")
    compare(got, want, outcome)
    compare_weights(run_folder / "model.safetensors", folder / "straight/model.safetensors", outcome)
    succeed([options.program, "export", run_folder, "--out", folder / "exported"], folder)
    same = (folder / "exported/model.safetensors").read_bytes() == (run_folder / "model.safetensors").read_bytes()
    expect(same, "the export has other bytes than", run_folder / "model.safetensors")
    config = [json.loads((where / "config.json").read_text()) for where in (folder / "exported", run_folder)]
    expect(config[0] == config[1], "the export has another config.json:", config)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], play, check_that_all_keys_are_covered)
