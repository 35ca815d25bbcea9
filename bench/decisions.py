#!/usr/bin/env python3
"""How much of a step each choice of the planner brings, by prediction.

    bench/decisions.py [--program PROGRAM] [--most SERVERS]

`distca simulate` plays steps of an 8B model (configs/gpu_8_nodes.toml) on stated H200s, over two lists of document
lengths, on 8, 64 and 512 servers, with and without a pipeline, whose layers one rank has or eight divide. Each choice
is the only difference to the same step without it. Prints a table: how much shorter the step is with the choice, the
least and the most over the lists and steps. The numbers rest on stated prices alone, so they are the same on every
computer.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
LENGTHS = ("pretrain", "prolong")
TOKENS_OF_SERVER = 65536
PAIRS = {  # choice: keys without it, with it
    "plan.tolerance=0.005, over 0.05": (["plan.tolerance=0.05"], ["plan.tolerance=0.005"]),
    "plan.split_kv": ([], ["plan.split_kv=true"]),
    "plan.spread": ([], ["plan.spread=true"]),
    "cluster.ranks_per_node": (["cluster.ranks_per_node=0"], []),
}
AUTO = ["plan.tolerance=auto", "plan.bandwidth_mb_per_s=50000"]
SLOW = ["--slow", "1=0.7"]
PLAIN_PAIRS = {
    "plan.tolerance=auto, over 0.05": (["plan.tolerance=0.05"], AUTO),
    "plan.tolerance=auto, over 0.005": (["plan.tolerance=0.005"], AUTO),
}
ONE_RANK_PAIRS = {  # refused with ranks that divide layers, and in a pipeline
    "servers.reweight, a server at 0.7": (SLOW, SLOW + ["servers.reweight=true", "train.deterministic=false"]),
}
PIPELINE_PAIRS = {
    "plan.fill_ticks=split-kv": (["plan.fill_ticks=exact"], ["plan.fill_ticks=split-kv"]),
    "plan.fill_ticks=spread": (["plan.fill_ticks=exact"], ["plan.fill_ticks=spread"]),
    "plan.bandwidth_mb_per_s": ([], ["plan.bandwidth_mb_per_s=50000"]),
}


def grid(servers, tensor, stages):
    """The ranks and the keys of a step. A pipeline has four micro-batches for each stage, of two nano-batches each."""
    nano_batches = 8 if stages == 1 else 8 * stages
    keys = [f"parallel.tensor_model_parallel_size={tensor}", f"parallel.pipeline_model_parallel_size={stages}",
            f"batch.nano_batches={nano_batches}", f"batch.nano_batch_tokens={TOKENS_OF_SERVER * servers // stages}"]
    return servers * tensor, keys


class Simulator:
    def __init__(self, program):
        self.program, self.seconds = program, {}

    def step(self, lengths, step, ranks, keys):
        words = [self.program, "simulate", "--config", ROOT / "configs/gpu_8_nodes.toml", "--lengths",
                 ROOT / f"distca/plan/testdata/lengths_{lengths}.json", "--workers", ranks, "--step", step, "--json",
                 *keys]
        words = tuple(map(str, words))
        if words not in self.seconds:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            self.seconds[words] = json.loads(done.stdout)["step_s"] if done.returncode == 0 else done.stderr.strip()
        return self.seconds[words]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/distca"))
    parser.add_argument("--most", type=int, default=512, help="servers")
    options = parser.parse_args()
    simulator = Simulator(options.program)
    print("choice|servers|ranks that divide layers|stages|shorter by, %: least|most")
    for servers in (8, 64, 512):
        for tensor in (1, 8):
            for stages in (1, 4):
                if servers > options.most:
                    continue
                ranks, keys = grid(servers, tensor, stages)
                pairs = PAIRS | (PIPELINE_PAIRS if stages > 1 else PLAIN_PAIRS)
                if stages == 1 and tensor == 1:
                    pairs |= ONE_RANK_PAIRS
                for name, (without, extra) in pairs.items():
                    gains = []
                    for lengths in LENGTHS:
                        for step in (1,) if servers > 64 else (1, 2, 3):
                            pair = [simulator.step(lengths, step, ranks, keys + more) for more in (without, extra)]
                            if any(isinstance(one, str) for one in pair):
                                sys.exit(f"{name}, {servers} servers: {pair}")
                            gains.append(100 * (1 - pair[1] / pair[0]))
                    print(f"{name}|{servers}|{tensor}|{stages}|{min(gains):+.1f}|{max(gains):+.1f}", flush=True)


if __name__ == "__main__":
    main()
