#!/usr/bin/env python3
"""A Llama of Transformers under PyTorch DDP, two processes of one core each, with DistCA's attention and without.

    bench/report.py --out FILE.jsonl build/python/tester/bin/python bench/python.py [LENGTHS.json...]

build/python/tester is what `make test-python` leaves: the package as it is installed, and its extras. LENGTHS.json: a
list of documents' lengths in tokens, which are divided by --scale and packed into rows, cut where a row ends; by default,
both lists of distca/plan/testdata. --rows rows are a step of as many ranks; two of them are played: the one with the most
attention, and the median one. Prints a header and a line a round, for bench/report.py.
"""

import argparse
import contextlib
import datetime
import gc
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import warnings

MODEL = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, vocab_size=512, max_position_embeddings=1 << 17)
RANKS = 2
LENGTHS = [pathlib.Path(__file__).parents[1] / f"distca/plan/testdata/lengths_{name}.json" for name in ("pretrain", "prolong")]
# For the ranks, which else give memory back to the system and get it again in every step (docs/python.md).
KEEPS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30)}
TINY_TOKENS, TINY_CALLS = 8, 40
# Arm -> (attention, nano-batches, whether lengths and plans come a batch ahead). The same one twice is the control.
ARMS = {
    "sdpa": ("sdpa", 1, False), "alone": ("alone", 1, False), "alone again": ("alone", 1, False),
    "balanced": ("balanced", 1, True), "balanced again": ("balanced", 1, True),
    "not ahead": ("balanced", 1, False), "ping-pong": ("balanced", 2, True), "linear": ("none", 1, False),
}


def packed_rows(lengths, tokens, scale):
    """Rows of exactly `tokens` tokens, as lists of lengths."""
    row, used = [], 0
    for length in lengths:
        rest = max(1, length // scale)
        while rest:
            part = min(rest, tokens - used)
            row.append(part)
            used, rest = used + part, rest - part
            if used == tokens:
                yield row
                row, used = [], 0


def pairs(row):
    return sum(length * (length + 1) // 2 for length in row)


def uneven_steps(lengths, options):
    """Of each step of options.rows rows: the one with the most pairs and the median one."""
    rows = packed_rows(lengths, options.tokens, options.scale)
    while True:
        step = sorted((next(rows) for _ in range(options.rows)), key=pairs)
        yield [step[-1], step[len(step) // 2]]


def even_steps(options):
    """Both ranks have the same documents."""
    while True:
        yield [[options.tokens // 4] * 4] * RANKS


# --- a rank


def sdpa_documents(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, **others):
    """PyTorch's operator for each document."""
    from torch.nn.functional import scaled_dot_product_attention
    places = cu_seq_lens_q.tolist()
    parts = [scaled_dot_product_attention(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scaling,
                                          enable_gqa=True) for a, b in zip(places, places[1:])]
    import torch
    return torch.cat(parts, 2).transpose(1, 2), None


def no_attention(module, query, key, value, attention_mask, **others):
    """What is left of a step without core attention."""
    return (query + key.repeat_interleave(query.shape[1] // key.shape[1], 1) + value.repeat_interleave(
        query.shape[1] // value.shape[1], 1)).transpose(1, 2), None


class Rank:
    def __init__(self, rank, store, options, ranks=RANKS):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        warnings.filterwarnings("ignore")
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"
        import torch
        import torch.distributed as dist

        import distca.transformers
        self.torch, self.dist, self.distca, self.rank, self.options = torch, dist, distca, rank, options
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                                timeout=datetime.timedelta(seconds=300))
        self.make_models()

    def make_models(self):
        import transformers
        for name, function in (("bench_sdpa", sdpa_documents), ("bench_none", no_attention)):
            transformers.AttentionInterface.register(name, function)
            transformers.AttentionMaskInterface.register(name, lambda *_, **__: None)
        self.models = {arm: self.model(*what[:2]) for arm, what in ARMS.items() if not arm.endswith(" again")}
        for arm in ARMS:
            if arm.endswith(" again"):
                self.models[arm] = self.models[arm.removesuffix(" again")]

    def model(self, attention, nano_batches, layers=None):
        from transformers import LlamaConfig, LlamaForCausalLM
        self.torch.manual_seed(1)
        config = LlamaConfig(**MODEL | ({"num_hidden_layers": layers} if layers else {}))
        model = LlamaForCausalLM(config).train()
        if attention in ("balanced", "alone"):
            self.distca.transformers.attach(model, nano_batches=nano_batches)
        else:
            model.set_attn_implementation("bench_" + attention)
        ddp = self.torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.note_time)
        return ddp

    def note_time(self, _):
        """The last of a step: when this rank's own gradients are complete and only the sum is awaited."""
        self.computed_s = time.monotonic()

    def batch(self, row):
        torch = self.torch
        generator = torch.Generator().manual_seed(len(row))
        ids = torch.randint(MODEL["vocab_size"], (1, sum(row)), generator=generator)
        places = torch.tensor([0, *row]).cumsum(0).to(torch.int32)
        labels = ids.clone()
        labels[0, places[:-1].long()] = -100
        positions = torch.cat([torch.arange(length) for length in row])[None]
        return dict(input_ids=ids, labels=labels, position_ids=positions, cu_seq_lens_q=places, cu_seq_lens_k=places,
                    max_length_q=max(row), max_length_k=max(row))

    def step(self, arm, rows):
        """One step of the arm, of the second of three rows. Where batches are planned ahead, a tiny one makes the layers
        known, the first row is the step under which the second is planned, and the third is planned under the second.
        """
        attention, _, ahead = ARMS[arm]
        model = self.models[arm]
        batches = [self.batch(row) for row in ([[TINY_TOKENS] * 2, *rows] if ahead else rows[1:2])]
        loader, waited = batches, []
        if ahead:
            loader = self.distca.plan_ahead(batches, self.distca.transformers.cu_seqlens_of(model.module))
        with self.distca._group.by_itself() if attention == "alone" else contextlib.nullcontext():
            coming = iter(loader)
            for _ in range(3 if ahead else 1):
                with self.counted_waits(waited):
                    batch = next(coming)
                    gc.collect()
                    self.dist.barrier()
                    begin = time.monotonic()
                    loss = model(**batch).loss
                    loss.backward()
                    end = time.monotonic()
                model.zero_grad()
        return {"step_s": end - begin, "computed_s": self.computed_s - begin, "planning_s": waited[-1], "loss": loss.item()}

    @contextlib.contextmanager
    def counted_waits(self, waited):
        """Appends the seconds that the loader and attention waited for the thread that plans."""
        from concurrent.futures import Future
        original, total = Future.result, [0.0]

        def result(future, timeout=None):
            begin = time.monotonic()
            try:
                return original(future, timeout)
            finally:
                total[0] += time.monotonic() - begin

        Future.result = result
        try:
            yield
        finally:
            Future.result = original
            waited.append(total[0])

    def python_side(self):
        """Processor time of a layer, forward and backward, of a few tokens on this rank alone, in seconds."""
        found = {}
        for name, attention, nano_batches in (("sdpa", "sdpa", 1), ("alone", "alone", 1), ("ping-pong", "balanced", 2)):
            layers = 16
            model = self.model(attention, nano_batches, layers)
            batch = self.batch([TINY_TOKENS] * nano_batches)
            seconds = []
            with self.distca._group.by_itself(), model.no_sync():
                for _ in range(TINY_CALLS):
                    begin = time.process_time()
                    model(**batch).loss.backward()
                    seconds.append(time.process_time() - begin)
            found[name] = sorted(seconds)[len(seconds) // 2] / layers / nano_batches
        return found


def serve(pipe, rank, store, options, kind=Rank):
    served = kind(rank, store, options)
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        method, *arguments = order
        pipe.send(getattr(served, method)(*arguments))
    served.dist.destroy_process_group()


# --- the driver


class Ranks:
    def __init__(self, options, serve, store, ranks=RANKS):
        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = spawn.Pipe()
            self.processes.append(spawn.Process(target=serve, args=(theirs, rank, store, options), daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)
        self.hear()

    def hear(self):
        return [pipe.recv() for pipe in self.pipes]

    def call(self, method, *arguments):
        for pipe in self.pipes:
            pipe.send((method, *arguments))
        return self.hear()

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()

    def step(self, arm, rows_of_batches):
        for rank, pipe in enumerate(self.pipes):
            pipe.send(("step", arm, [rows[rank] for rows in rows_of_batches]))
        return self.hear()


def header(options, bench, model, **others):
    """With what bench/report.py says of a run, and the options."""
    import torch
    import transformers
    info = pathlib.Path("/proc/cpuinfo").read_text()
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True,
                            cwd=pathlib.Path(__file__).parent).stdout.strip()
    settings = {name: value for name, value in vars(options).items() if name != "lengths"}
    return {"line": "head", "bench": bench, "machine": next(line.split(": ")[1] for line in info.splitlines()
                                                               if line.startswith("model name")),
            "date": datetime.date.today().isoformat(), "commit": commit, "build": "Release",
            "compiler": f"Python {platform.python_version()}", "torch": torch.__version__, "type": "fp32",
            "transformers": transformers.__version__, "model": model} | settings | others


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=pathlib.Path, default=LENGTHS)
    parser.add_argument("--tokens", type=int, default=8192, help="of a rank's row")
    parser.add_argument("--scale", type=int, default=8, help="what lengths are divided by")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sources = {}
    for path in options.lengths:
        if not path.is_file():
            sys.exit(f"bench/python.py: error: {path} is not there")
        sources[path.stem.removeprefix("lengths_")] = uneven_steps(json.loads(path.read_text()), options)
    sources["even"] = even_steps(options)
    print(json.dumps(header(options, "python", MODEL, sources=list(sources))), flush=True)
    os.environ |= KEEPS_FREED_MEMORY
    ranks = Ranks(options, serve, tempfile.mktemp("distca_bench"))
    print(json.dumps({"line": "python_side", "ranks": ranks.call("python_side")}), flush=True)
    names = list(ARMS)
    for name, steps in sources.items():
        for index in range(-1, options.rounds):
            rows = [next(steps) for _ in range(3)]
            turn = names[index % len(names):] + names[:index % len(names)]
            arms = {arm: ranks.step(arm, rows) for arm in turn}
            if index >= 0:  # the first is for warming up
                print(json.dumps({"line": "round", "source": name, "round": index, "pairs": [pairs(r) for r in rows[1]],
                                  "arms": arms}), flush=True)
    ranks.close()


if __name__ == "__main__":
    main()
