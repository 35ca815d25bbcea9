"""Groups of ranks that share their attention.

DistCA sends its messages over a process group of its own on the ranks of the caller's group. So on the CPU its messages
and those of DDP or FSDP never wait for each other. It has its own deadline: when a rank does not come, is killed or skips
a step, every other rank gets one line that names it (RuntimeError).

That group is Gloo's, in host memory. What ranks agree on travels there, and so do Q, K, V, O and gradients of tensors on
the CPU. Those of tensors on a CUDA device travel through NCCL, with connections of DistCA's own, which are made at the
first attention of the group.
"""

import atexit
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from distca._ops import ops

_BACKENDS = (None, "gloo", "nccl")

_names = weakref.WeakKeyDictionary()  # process group of the caller -> the name of ours on its ranks
_openings = {}  # our name -> backend, timeout_s, startup_timeout_s
_ahead = {}  # our name -> that of another group of ours on the same ranks, for messages of a thread
_alone = []  # not empty within by_itself()
_at_exit = []


@dataclass(frozen=True)
class Statistics:
    """What this rank has done in a group so far, summed over all layers."""

    forwards: int  # calls of attention
    backwards: int  # of these calls
    sent_bytes: int
    plans: int  # made, those one batch ahead among them


def _resolved(group):
    """The caller's group of several ranks, or None where this process computes alone."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = dist.group.WORLD
    elif hasattr(group, "get_group"):  # a DeviceMesh of one dimension
        group = group.get_group()
    if dist.get_rank(group) < 0:
        raise ValueError("this rank is not in the group that attention was given")
    return None if dist.get_world_size(group) == 1 else group


def init(group=None, *, backend: str | None = None, timeout_s: float = 600.0, startup_timeout_s: float = 300.0) -> None:
    """Opens a group: a process group, a DeviceMesh of one dimension, or None for all ranks.

    All ranks of the group call it, and a group is opened once. It is optional: the first attention of a group opens it
    with the defaults. Where there is no process group, or one of a single rank, it does nothing.

    backend: what carries Q, K, V, O and gradients, the same on all ranks: "gloo" for tensors on the CPU, "nccl" for those
      on CUDA devices, a device for each rank. None takes what fits the tensors. Tensors that the backend does not carry
      are refused at the first attention (RuntimeError).
    timeout_s: seconds that one wait for another rank may last: longer than one rank alone saves or evaluates meanwhile.
    startup_timeout_s: seconds that the ranks may take to meet here, and to connect through NCCL.
    Raises ValueError if the group is open, RuntimeError that names the ranks that have not come or give another backend.
    """
    group = _resolved(group)
    if group is None:
        return
    if group in _names:
        raise ValueError("the group is open: call distca.init before the first attention, and once")
    if backend not in _BACKENDS:
        raise ValueError(f"backend = {backend!r}: None, 'gloo' or 'nccl'")
    if not (timeout_s > 0 and startup_timeout_s > 0):
        raise ValueError(f"timeout_s = {timeout_s}, startup_timeout_s = {startup_timeout_s}: seconds, above 0")
    opening = backend or "", timeout_s, startup_timeout_s
    _names[group] = _opened(group, *opening)
    _openings[_names[group]] = opening


def _forget_destroyed():
    """Closes groups of ours whose process groups the program has destroyed: PyTorch gives their names again."""
    for group in [group for group in _names if group not in dist.distributed_c10d._world.pg_map]:
        name = _names.pop(group)
        _openings.pop(name, None)
        for closed in filter(None, (name, _ahead.pop(name, ""))):
            ops.close(closed)


def _opened(group, backend, timeout_s, startup_timeout_s) -> str:
    """The name of a new group of ours on the ranks of the caller's, which all of them ask for."""
    _forget_destroyed()
    ranks = dist.get_process_group_ranks(group)
    everybody = len(ranks) == dist.get_world_size()
    if not everybody:
        _know_equally_many_groups(group)
    own = dist.new_group(ranks, backend="gloo", use_local_synchronization=not everybody)
    ops.open(own.group_name, backend, timeout_s, startup_timeout_s)
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))
    return own.group_name


def _close_all():
    """Says goodbye to the other ranks. After an error that nobody caught, it waits for none of them."""
    attention = sys.modules.get("distca._attention")
    if attention:
        attention._forwards.clear()  # their steps keep groups open
    failed = hasattr(sys, "last_value")
    for name in [] if failed else [*_names.values(), *_ahead.values()]:
        try:
            ops.throw_if_failed(name)
        except RuntimeError as error:
            print(f"distca: {str(error).splitlines()[0]}; results since then are of no use", file=sys.stderr)
            failed = True
    ops.close_all(failed)


def _know_equally_many_groups(group):
    """Lets this rank know as many process groups as the others of the group.

    PyTorch names a group that not all ranks make by how many groups a rank knows. Where that differs, as it does between
    the stages of Megatron's pipelines, ranks would wait for each other under two names.
    """
    known = dist.distributed_c10d._world.pg_names
    counts = [None] * dist.get_world_size(group)
    dist.all_gather_object(counts, len(known), group)
    while len(known) < max(counts):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


@contextmanager
def by_itself():
    """Within it, attention is computed on each rank alone, with gradients, too."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


def name_of(group) -> str:
    """The name under which the operators know a group, which is opened if need be. Empty: this process alone."""
    group = None if _alone else _resolved(group)
    if group is None:
        return ""
    if group not in _names:
        init(group)
    return _names[group]


def ahead_of(group) -> str:
    """The name of a second group on the same ranks, for a thread beside the one that trains. All ranks call it."""
    name = name_of(group)
    if name and name not in _ahead:
        _ahead[name] = _opened(_resolved(group), *_openings[name])
    return _ahead.get(name, "")


def synchronize(group=None) -> None:
    """Waits until this rank's device has done what it was given, and raises RuntimeError if the group has failed.

    On a CUDA device, the host goes on while messages are under way. If they fail, what was computed since is of no use:
    call it before you save. On the CPU, attention itself raises.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if name := name_of(group):
        ops.throw_if_failed(name)


def statistics(group=None) -> Statistics:
    """What this rank has done in the group. Attention with gradients off counts where no group is: see `alone`."""
    name = name_of(group)
    *counts, plans = ops.counts(name)
    return Statistics(*counts, plans + (ops.counts(_ahead[name])[-1] if name in _ahead else 0))


def balanced_calls() -> int:
    """Calls of attention in all groups."""
    return sum(ops.counts(name)[0] for name in _names.values())


def alone() -> Statistics:
    """What this process has computed by itself: with gradients off, or without a group of several ranks."""
    return Statistics(*ops.counts(""))
