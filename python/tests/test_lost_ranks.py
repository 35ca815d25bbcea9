"""A rank that is killed in the middle of a step is named by the others, in one line and within the deadline."""

import os
import signal
import time

import pytest
import torch.distributed as dist
from attention_model import Model, balanced, cu_seqlens_of, tokens_of
from rank_processes import Ranks

import distca as ours

LENGTHS = [[20], [700, 3], [90]]
DEADLINE_S = 250  # the loss is known within a few heartbeats of a second
LOST = 2


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in(where):
    """Rank LOST dies in the second of three layers of the second step."""
    ours.init(timeout_s=DEADLINE_S)
    rank = dist.get_rank()
    x, cu_seqlens = tokens_of(LENGTHS[rank]), cu_seqlens_of(LENGTHS[rank])

    def attend(q, k, v, cu_seqlens, layer):
        if step == 0 or layer != 1 or rank != LOST:
            return balanced(q, k, v, cu_seqlens, layer)
        if where == "forward":
            ours.dispatch(q, k, v, cu_seqlens, cu_seqlens, layer=layer)
            die()
        o = balanced(q, k, v, cu_seqlens, layer)
        o.register_hook(die)
        return o

    model = Model(attend)
    for step in range(3):
        model(x, cu_seqlens).backward()


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_is_killed_is_named(where):
    with Ranks(3) as ranks:
        ranks.tell(killed_in, where)
        ranks.processes[LOST].join(300)
        assert ranks.processes[LOST].exitcode == -signal.SIGKILL
        died = time.monotonic()
        for rank in set(range(3)) - {LOST}:
            good, said = ranks.hear(rank)
            assert time.monotonic() - died < DEADLINE_S, "after the deadline"
            line = said.splitlines()[0].removeprefix(f"rank {rank}: ")
            assert not good and line.startswith(f"rank {LOST} is silent"), line
