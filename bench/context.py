#!/usr/bin/env python3
"""Training steps of packed documents that are longer than a rank's share: DistCA beside other context parallelism.

    bench/report.py --out FILE.jsonl build/python/tester/bin/python bench/context.py [--ranks 4] [LENGTHS.json...]

A Llama of Transformers, forward and backward, each rank a process pinned to a core (two ranks to each of two cores where
they are four: then processor time counts). All arms compute with DistCA's kernel for the CPU (bench/kernel_calls.cc); the
rivals are in bench/context_rivals.py. Before the rounds, the gradients of all arms are compared. LENGTHS.json: as for
bench/python.py; a batch is --tokens of each rank. Batches are sorted into those with a document that exceeds a rank's
share and those without. Prints a header and a line a round, for bench/report.py.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import tempfile
import time

import python as training

MODEL = training.MODEL | dict(num_attention_heads=8, num_key_value_heads=4)
TINY = [64, 64]
OURS = ("distca", "distca again")
RIVALS = ("all-gather", "whole documents", "Ulysses", "zigzag ring")
MOST_DIFFERENCE = 2e-4  # of gradients, of the largest one: float32


class Rank(training.Rank):
    def __init__(self, rank, store, options):
        super().__init__(rank, store, options, options.ranks)
        import context_rivals
        self.rivals = context_rivals

    def make_models(self):
        import transformers
        transformers.AttentionInterface.register("bench_context", lambda module, *qkv, **others: self.attend(*qkv[:3]))
        transformers.AttentionMaskInterface.register("bench_context", lambda *_, **__: None)
        self.ours, self.theirs = (self.plain_model() for _ in range(2))
        self.distca.transformers.attach(self.ours)
        self.theirs.set_attn_implementation("bench_context")

    def plain_model(self):
        from transformers import LlamaConfig, LlamaForCausalLM
        self.torch.manual_seed(1)
        return LlamaForCausalLM(LlamaConfig(**MODEL)).train()

    def attend(self, query, key, value):
        return self.method.attend(*(one[0].transpose(0, 1).contiguous() for one in (query, key, value))).unsqueeze(0), None

    def whole_batch(self, lengths):
        batch = self.batch(lengths)
        return {name: batch[name] for name in ("input_ids", "labels", "position_ids")}

    def step(self, arm, lengths):
        """A step of the batch of all ranks with these documents."""
        for model in (self.ours, self.theirs):
            model.zero_grad()
        return self.our_step(lengths) if arm in OURS else self.their_step(arm, lengths)

    def timed(self, next_batch, model, received):
        gc.collect()
        self.dist.barrier()
        before, begin, used = received(), time.monotonic(), time.process_time()
        model(**next_batch()).loss.backward()
        return {"step_s": time.monotonic() - begin, "processor_s": time.process_time() - used,
                "received_bytes": (received() - before) / MODEL["num_hidden_layers"]}

    def our_step(self, lengths):
        """Its batch is planned under a tiny one and has one of its size planned under it, as in a loop."""
        turns = [TINY, lengths, lengths, *[TINY] * (self.options.ranks - 3 % self.options.ranks)]
        mine = [self.whole_batch(turn) for turn in turns[self.rank::self.options.ranks]]
        steps = iter(self.distca.transformers.shard(mine, self.ours, at_once=1, gradients="sum"))
        found = None
        for turn in range(len(turns)):
            took = self.timed(lambda: next(steps), self.ours, self.sent_bytes)
            if turn == 1:
                found = took
                kept = [parameter.grad.clone() for parameter in self.ours.parameters()]
            self.ours.zero_grad()
        for parameter, gradient in zip(self.ours.parameters(), kept):
            parameter.grad = gradient
        return found

    def sent_bytes(self):
        """Of all calls of attention up to here, a rank's share of what all ranks send."""
        _group, ops = self.distca._group, self.distca._ops.ops
        return ops.balance(_group.name_of(None))[3] / self.options.ranks

    def their_step(self, arm, lengths):
        batch = self.whole_batch(lengths)
        places = batch["position_ids"][0].eq(0).nonzero().flatten().tolist() + [sum(lengths)]
        self.method = self.rivals.METHODS[arm](places)
        targets = self.torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
        rows = self.method.indices
        if len(rows) == 0:  # fewer documents than ranks: this one has none, which Transformers does not take
            for parameter in self.theirs.parameters():
                parameter.grad = self.torch.zeros_like(parameter)
            self.dist.barrier()
            return {"step_s": 0, "processor_s": 0, "received_bytes": 0}
        mine = {"input_ids": batch["input_ids"][:, rows], "position_ids": batch["position_ids"][:, rows],
                "labels": targets[:, rows], "shift_labels": targets[:, rows], "use_cache": False,
                "num_items_in_batch": targets.ge(0).sum()}
        return self.timed(lambda: mine, self.theirs, lambda: self.method.received)

    def gradients_differ_by(self, arms, lengths):
        """The largest difference of each arm's gradients from those of the first, of the largest of that parameter."""
        found, want = {}, None
        for arm in arms:
            self.step(arm, lengths)
            model, got = self.ours if arm in OURS else self.theirs, []
            for parameter in model.parameters():
                self.dist.all_reduce(parameter.grad)
                got.append(parameter.grad.clone())
            want = want or got
            found[arm] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want))
        return found


def serve(pipe, rank, store, options):
    training.serve(pipe, rank, store, options, Rank)


def batches(lengths, options, exceeding):
    """Lists of documents, each `options.tokens` of each rank, in which a document exceeds a rank's share, or none does."""
    rows = training.packed_rows(lengths, options.tokens * options.ranks, options.scale)
    return (row for row in rows if (max(row) > options.tokens) == exceeding)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=pathlib.Path, default=training.LENGTHS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048, help="of a rank")
    parser.add_argument("--scale", type=int, default=32, help="what lengths are divided by")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sources = {}
    for path in options.lengths:
        if not path.is_file():
            sys.exit(f"bench/context.py: error: {path} is not there")
        name = path.stem.removeprefix("lengths_")
        for exceeding in (True, False):
            sources[f"{name}, {'long' if exceeding else 'short'}"] = batches(json.loads(path.read_text()), options, exceeding)
    print(json.dumps(training.header(options, "context", MODEL, sources=list(sources), cores=os.cpu_count())), flush=True)
    os.environ |= training.KEEPS_FREED_MEMORY
    ranks = training.Ranks(options, serve, tempfile.mktemp("distca_bench"), options.ranks)
    arms = [*OURS, *RIVALS]
    for name, lists in sources.items():
        for index in range(options.rounds):
            lengths = next(lists, None)
            if lengths is None:
                break
            if index == 0:
                differences = ranks.call("gradients_differ_by", arms, lengths)[0]
                print(json.dumps({"line": "differences", "source": name, "arms": differences}), flush=True)
                if not all(value <= MOST_DIFFERENCE for value in differences.values()):
                    sys.exit(f"bench/context.py: error: gradients differ: {differences}")
            turn = arms[index % len(arms):] + arms[:index % len(arms)]
            found = {arm: ranks.call("step", arm, lengths) for arm in turn}
            print(json.dumps({"line": "round", "source": name, "round": index, "longest": max(lengths),
                              "documents": len(lengths), "pairs": training.pairs(lengths), "arms": found}), flush=True)
    ranks.close()


if __name__ == "__main__":
    main()
