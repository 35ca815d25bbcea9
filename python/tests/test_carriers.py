"""What carries Q, K, V, O and gradients. Over a stand-in for NCCL that moves host memory, everything has the bits of Gloo."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib

import pytest
import torch
import torch.distributed as dist
from attention_model import Model, cu_seqlens_of, gradients, qkv, tokens_of
from rank_processes import Ranks, short_timeout_s
from test_attention_states import WRAPS

import distca as ours
from distca import _group as group

STANDIN = os.environ.get("DISTCA_NCCL_STANDIN")
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
LENGTHS = [[[951, 20], [30, 90, 7], [5]], [[90, 1], [], [260]]]  # [nano-batch][rank][document]
needs_standin = pytest.mark.skipif(not STANDIN, reason="build/release has no libnccl_standin.so: make build")


@pytest.fixture(scope="module")
def nccl_ranks():
    """Three ranks that load the stand-in in NCCL's place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTCA_NCCL_LIBRARY", STANDIN or "")
        ranks = Ranks(3)
    with ranks:
        yield ranks


@functools.cache
def group_of(backend):
    made = dist.new_group(list(range(dist.get_world_size())))
    group.init(made, backend=backend)
    return made


def one_by_one(*bodies):
    return [body() for body in bodies]


def train(backend, wrap, takes_turns):
    """Loss and gradients, and the bytes that this rank sent."""
    over = group_of(backend)

    def attend(q, k, v, cu_seqlens, layer):
        return ours.attention(q, k, v, cu_seqlens, cu_seqlens, group=over, layer=layer)

    before = group.statistics(over).sent_bytes
    model = Model(attend, 3, WRAPS[wrap])
    batches = [(tokens_of(of[dist.get_rank()], seed), cu_seqlens_of(of[dist.get_rank()])) for seed, of in enumerate(LENGTHS)]
    losses = (ours.ping_pong if takes_turns else one_by_one)(*(functools.partial(model, *batch) for batch in batches))
    sum(losses).backward()
    return [sum(losses).detach(), *gradients(model)], group.statistics(over).sent_bytes - before


def same_bits(wrap, takes_turns):
    if takes_turns:
        pytest.importorskip("greenlet")
    (gloo, sent), (nccl, sent_through_nccl) = (train(backend, wrap, takes_turns) for backend in ("gloo", "nccl"))
    return all(map(torch.equal, gloo, nccl)), sent, sent_through_nccl


@needs_standin
@pytest.mark.parametrize("takes_turns", [False, True], ids=["in sequence", "ping-pong"])
@pytest.mark.parametrize("wrap", ["none", "whole", "keeps attention"])
def test_nccl_has_the_bits_of_gloo(nccl_ranks, wrap, takes_turns):
    found = nccl_ranks.run(same_bits, wrap, takes_turns)
    assert all(same for same, _, _ in found)
    assert [sent for _, sent, _ in found] == [sent for _, _, sent in found] and sum(sent for _, sent, _ in found) > 0


def give_up_after_dispatch(timeout_s):
    """The last rank sends its Q, K and V, and does not compute for the others."""
    group.init(backend="nccl", timeout_s=timeout_s, startup_timeout_s=300)
    cu_seqlens = cu_seqlens_of([900] if dist.get_rank() == 0 else [20])
    (q, k, v), _ = qkv(int(cu_seqlens[-1]))
    if dist.get_rank() == 1:
        handle = ours.dispatch(q, k, v, cu_seqlens, cu_seqlens, layer=0)  # noqa: F841: it is alive meanwhile
        time.sleep(2.5 * timeout_s)
        return "waited"
    ours.synchronize()  # all is well
    with pytest.raises(RuntimeError):
        ours.attention(q, k, v, cu_seqlens, cu_seqlens, layer=0)
    ours.synchronize()  # what a program asks before it saves


@needs_standin
def test_a_rank_whose_messages_do_not_come_through_nccl_is_named(monkeypatch):
    monkeypatch.setenv("DISTCA_NCCL_LIBRARY", STANDIN)
    with Ranks(2) as ranks:
        ranks.tell(give_up_after_dispatch, short_timeout_s(3))
        good, line = ranks.hear(0)
        assert not good and "rank 1" in line.splitlines()[0].removeprefix("rank 0: "), line
        assert ranks.hear(1) == (True, "waited")


ENDS_WITH_AN_ERROR = """
import sys, torch.distributed as dist
from attention_model import cu_seqlens_of, qkv
import distca
rank, port, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=2)
distca.init(backend=backend, timeout_s=1000)
cu_seqlens = cu_seqlens_of([900] if rank == 0 else [20])
for step in range(2):
    if (rank, step) == (1, 1):
        raise ValueError("a fault of the program's")
    (q, k, v), _ = qkv(int(cu_seqlens[-1]))
    distca.attention(q, k, v, cu_seqlens, cu_seqlens)
"""


@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=needs_standin)])
def test_a_rank_that_ends_with_an_error_is_named_at_once(backend):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "DISTCA_NCCL_LIBRARY": STANDIN or "", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([sys.executable, "-c", ENDS_WITH_AN_ERROR, str(rank), str(store.port), backend],
                              env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    said = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], said
    assert "rank 1 ended with an error" in said[0].splitlines()[-1], said[0]
    assert "ValueError: a fault of the program's" in said[1], said[1]


def attend_over(backend):
    cu_seqlens = cu_seqlens_of([64])
    (q, k, v), _ = qkv(64)
    made = dist.new_group([0, 1])
    group.init(made, backend=backend[dist.get_rank()])
    ours.attention(q, k, v, cu_seqlens, cu_seqlens, group=made)


def test_nccl_without_host_memory_refuses_tensors_on_the_cpu(two_ranks):
    two_ranks.tell(attend_over, ["nccl"] * 2)
    for rank in range(2):
        good, said = two_ranks.hear(rank)
        assert not good and ("carries the memory of GPUs alone: distca.init(backend=None)" in said
                             or "NCCL cannot be loaded" in said), said


def test_ranks_with_other_backends_are_named(two_ranks):
    two_ranks.tell(attend_over, [None, "nccl"])
    for rank in range(2):
        good, said = two_ranks.hear(rank)
        assert not good and "rank 1 opens the group with backend = nccl, rank 0 with None" in said.splitlines()[0], said


def open_with_mpi():
    with pytest.raises(ValueError, match="backend = 'mpi': None, 'gloo' or 'nccl'"):
        group.init(dist.new_group([0, 1]), backend="mpi")


def test_a_backend_that_is_not_there_is_refused(two_ranks):
    two_ranks.run(open_with_mpi)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_program_that_compares_a_device_with_the_cpu(ranks):
    """With the CPU in the device's place. The bounds are those of a device."""
    words = ["--backend", "nccl"] if STANDIN and ranks > 1 else []
    ran = subprocess.run([sys.executable, BENCH / "gpu_python.py", "--device", "cpu", "--ranks", str(ranks), *words],
                         capture_output=True, text=True, timeout=300,
                         env=os.environ | ({"DISTCA_NCCL_LIBRARY": STANDIN} if words else {}))
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    bounds = tomllib.loads((BENCH / "gpu_bounds.toml").read_text())["D"]
    assert [line["type"] for line in lines] == ["fp32", "bf16"]
    for line in lines:
        for figure in ("loss", "gradients"):
            bound = bounds[f"Python operators, {line['type']}: {figure} beside the CPU's, relative"]["at_most"]
            assert 0 < line[figure] <= bound, line
        assert (line["sent_bytes"] > 0) == (ranks > 1)
