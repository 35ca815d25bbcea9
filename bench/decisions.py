#!/usr/bin/env python3
"""How much of a step each choice of the planner brings, by prediction.

    bench/decisions.py [--program PROGRAM] [--servers N]...

`distca simulate` plays steps of an 8B model (configs/gpu_8_nodes.toml) on stated H200s, over two lists of document
lengths, on 8, 64 and 512 servers, with and without a pipeline, whose layers one rank has or eight divide, on networks of
50 and of 12.5 GB/s a GPU. Each choice is the only difference to the same step without it. Prints a table: how much
shorter the step is with the choice, the least and the most over the lists and steps. The numbers rest on stated prices
alone, so they are the same on every computer.
"""

import argparse
import functools
import itertools
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
LENGTHS = ("pretrain", "prolong")
TOKENS_OF_SERVER = 65536
NETWORKS_GB_PER_S = (50, 12.5)
PAIRS = {  # choice: keys without it, with it
    "plan.tolerance=0.005, over 0.02": (["plan.tolerance=0.02"], ["plan.tolerance=0.005"]),
    "plan.tolerance=0.05, over 0.02": (["plan.tolerance=0.02"], ["plan.tolerance=0.05"]),
    "plan.split_kv": ([], ["plan.split_kv=true"]),
    "plan.spread": ([], ["plan.spread=true"]),
    "cluster.ranks_per_node": (["cluster.ranks_per_node=0"], []),
}
PLAIN_PAIRS = {
    "plan.tolerance=auto, over 0.02": (["plan.tolerance=0.02"],
                                       ["plan.tolerance=auto", "plan.bandwidth_mb_per_s={bandwidth}"]),
}
SLOW = ["--slow", "1=0.7"]
ONE_RANK_PAIRS = {  # refused with ranks that divide layers, and in a pipeline
    "servers.reweight, a server at 0.7": (SLOW, SLOW + ["servers.reweight=true", "train.deterministic=false"]),
}
PIPELINE_PAIRS = {
    "plan.fill_ticks=spread": (["plan.fill_ticks=exact"], ["plan.fill_ticks=spread"]),
    "plan.bandwidth_mb_per_s": ([], ["plan.bandwidth_mb_per_s={bandwidth}"]),
}


def grid(servers, tensor, stages):
    """The ranks and the keys of a step. A pipeline has four micro-batches for each stage, of two nano-batches each. 512
    servers have half of the layers, as more cannot be looked at together."""
    nano_batches = 8 * stages
    keys = [f"parallel.tensor_model_parallel_size={tensor}", f"parallel.pipeline_model_parallel_size={stages}",
            f"batch.nano_batches={nano_batches}", f"batch.nano_batch_tokens={TOKENS_OF_SERVER * servers // stages}"]
    return servers * tensor, keys + (["model.num_hidden_layers=16"] if servers > 64 else [])


class Simulator:
    def __init__(self, program, folder):
        self.program, self.machines = program, {}
        printed = self.call("simulate", "--machine", "h200", "--print-machine")
        numbers = json.loads(printed)["numbers"]
        self.of_node, self.inside = (numbers[name]["value"] for name in ("ranks_per_node", "inside_gb_per_s"))
        for rate in NETWORKS_GB_PER_S:
            machine = json.loads(printed)
            machine["name"], machine["numbers"]["between_gb_per_s"]["value"] = f"h200, {rate:g} GB/s", rate
            self.machines[rate] = pathlib.Path(folder) / f"{rate:g}.json"
            self.machines[rate].write_text(json.dumps(machine))

    def call(self, *words):
        return subprocess.run([self.program, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True).stdout

    @functools.cache
    def step(self, network, lengths, step, ranks, *keys):
        return json.loads(self.call(
            "simulate", "--config", ROOT / "configs/gpu_8_nodes.toml", "--machine", self.machines[network], "--lengths",
            ROOT / f"distca/plan/testdata/lengths_{lengths}.json", "--workers", ranks, "--step", step, "--json", *keys))["step_s"]

    def play(self, servers, tensor, stages, network):
        ranks, keys = grid(servers, tensor, stages)
        bandwidth = 1000 * (self.inside if ranks <= self.of_node else network)
        pairs = PAIRS | (PIPELINE_PAIRS if stages > 1 else PLAIN_PAIRS)
        if stages == 1 and tensor == 1:
            pairs |= ONE_RANK_PAIRS
        for name, pair in pairs.items():
            gains = []
            for lengths, step in itertools.product(LENGTHS, (1,) if servers > 64 else (1, 2)):
                without, extra = (self.step(network, lengths, step, ranks, *keys,
                                            *([] if "plan.spread=true" in more else ["plan.spread=false"]),
                                            *(word.format(bandwidth=int(bandwidth)) for word in more)) for more in pair)
                gains.append(100 * (1 - extra / without))
            print(f"{name}|{servers}|{tensor}|{stages}|{network:g}|{min(gains):+.1f}|{max(gains):+.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/distca"))
    parser.add_argument("--servers", type=int, action="append", help="8, 64 and 512 if not given")
    options = parser.parse_args()
    print("choice|servers|ranks that divide layers|stages|network, GB/s|shorter by, %: least|most")
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(options.program, folder)
        steps = itertools.product(options.servers or (8, 64, 512), (1, 8), (1, 4), NETWORKS_GB_PER_S)
        for servers, tensor, stages, network in steps:
            if servers * tensor > simulator.of_node or network == NETWORKS_GB_PER_S[0]:
                simulator.play(servers, tensor, stages, network)


if __name__ == "__main__":
    main()
