"""Groups of ranks that share their attention.

DistCA sends its messages over a process group of its own on the ranks of the caller's group. So on the CPU its messages
and those of DDP or FSDP never wait for each other. It has its own deadline: when a rank does not come, is killed or skips
a step, every other rank gets one line that names it (RuntimeError).

That group is Gloo's, in host memory. What ranks agree on travels there, and so do Q, K, V, O and gradients of tensors on
the CPU. Those of tensors on a CUDA device travel through NCCL, with connections of DistCA's own, which are made at the
first attention of the group.
"""

import atexit
import hashlib
import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist

from distca._ops import ops

_MOST_SECONDS = 10**9
_GLOO_KEYS = "distca/distca/gloo"  # in the store: where the last rank that ends deletes them (heartbeat.cc)

_names = weakref.WeakKeyDictionary()  # process group of the caller -> the name of ours on its ranks
_open = {}  # our name -> _Open
_counts = {}  # ranks -> how many groups of ours they have opened
_alone = []  # not empty within by_itself()
_at_exit = []


@dataclass
class _Open:
    """A group of ours."""

    theirs: weakref.ref  # the caller's group
    own: object  # the process group
    opening: tuple  # backend, timeout_s, startup_timeout_s
    given: tuple = (0, 0.0)  # sums over dealt steps, as the loaders gave them: pairs of the busiest rank, and their mean
    ahead: str = ""  # the name of another group of ours on the same ranks, for messages of a thread


@dataclass(frozen=True)
class Statistics:
    """What this rank has done in a group so far, summed over all layers."""

    forwards: int  # calls of attention
    backwards: int  # of these calls
    sent_bytes: int
    plans: int  # made, those one batch ahead among them


def resolved(group):
    """The caller's group of several ranks, or None where this process computes alone."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = dist.group.WORLD
    elif hasattr(group, "get_group"):  # a DeviceMesh of one dimension
        group = group.get_group()
    if isinstance(group, torch.nn.Module):
        raise ValueError(f"a {type(group).__name__} is no process group: give the group whose ranks share its attention")
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
    group = resolved(group)
    if group is None:
        return
    if group in _names:
        raise ValueError("the group is open: call distca.init before the first attention, and once")
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend = {backend!r}: None, 'gloo' or 'nccl'")
    if not all(0 < seconds < _MOST_SECONDS for seconds in (timeout_s, startup_timeout_s)):
        raise ValueError(f"timeout_s = {timeout_s}, startup_timeout_s = {startup_timeout_s}: seconds, above 0 and below "
                         f"{_MOST_SECONDS}")
    _names[group] = _opened(group, backend or "", timeout_s, startup_timeout_s)


def _forget_destroyed():
    """Ends groups of ours whose process groups the program has destroyed."""
    for name, one in [*_open.items()]:
        if one.theirs() in dist.distributed_c10d._world.pg_map:
            continue
        for group in [group for group, own in _names.items() if own == name]:
            del _names[group]
        _forget_forwards(name)
        ops.close(name)
        torch._C._distributed_c10d._unregister_process_group(name)
        del _open[name]


def _forget_forwards(name=None):
    """Of a group, or of all: their steps keep it open."""
    attention = sys.modules.get("distca._attention")
    for forwards in list(attention._forwards.values()) if attention else []:
        forwards.pop(name, None) if name else forwards.clear()


def _opened(group, *opening) -> str:
    """The name of a new group of ours on the ranks of the caller's, which all of them ask for."""
    own = _gloo_group(group, opening[-1])
    ops.open(own.group_name, *opening)
    _forget_destroyed()  # only now: all have met, and none waits for messages of groups before
    _open[own.group_name] = _Open(weakref.ref(group), own, opening)
    if not _at_exit:
        _at_exit.append(atexit.register(_close_all))
    return own.group_name


def _gloo_group(group, timeout_s):
    """A process group on the ranks of the caller's.

    dist.new_group is not used: it names a group of some ranks by how many groups a rank knows, which may differ and come
    again. This name counts the groups of ours on these ranks, which all of them open alike.
    """
    ranks = dist.get_process_group_ranks(group)
    count = _counts[tuple(ranks)] = _counts.get(tuple(ranks), 0) + 1
    name = f"distca/{hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]}/{count}"
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    of_group = store, dist.get_rank(group), len(ranks)
    own, kind = dist.ProcessGroup(*of_group), dist.ProcessGroup.BackendType.GLOO
    own._set_default_backend(kind)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore(_GLOO_KEYS, store), *of_group[1:], timedelta(seconds=timeout_s))
    own._register_backend(torch.device("cpu"), kind, gloo)
    own._set_group_name(name)
    torch._C._distributed_c10d._register_process_group(name, own)
    return own


def _close_all():
    """Says goodbye to the other ranks. After an error that nobody caught, it waits for none of them."""
    _forget_forwards()
    failed = hasattr(sys, "last_value")
    for name in [] if failed else [*_names.values(), *(one.ahead for one in _open.values() if one.ahead)]:
        try:
            ops.throw_if_failed(name)
        except RuntimeError as error:
            print(f"distca: {str(error).splitlines()[0]}; results since then are of no use", file=sys.stderr)
            failed = True
    ops.close_all(failed)


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
    group = None if _alone else resolved(group)
    if group is None:
        return ""
    if group not in _names:
        init(group)
    return _names[group]


def _open_name_of(group) -> str | None:
    """`name_of` without opening a group, for which all ranks would have to come: None if it is not open.

    Where the caller names no group, one that is open on all ranks will do, as a framework may have opened its own.
    """
    asked, group = group, None if _alone else resolved(group)
    if group is None:
        return ""
    same = [group] if asked is not None else [group, *_names]
    size = dist.get_world_size(group)
    return next((_names[one] for one in same if one in _names and dist.get_world_size(one) == size), None)


def ahead_of(group) -> str:
    """The name of a second group on the same ranks, for a thread beside the one that trains. All ranks call it."""
    if not (name := name_of(group)):
        return ""
    one = _open[name]
    one.ahead = one.ahead or _opened(resolved(group), *one.opening)
    return one.ahead


def synchronize(group=None) -> None:
    """Waits until this rank's device has done what it was given, and raises RuntimeError if the group has failed.

    On a CUDA device, the host goes on while messages are under way. If they fail, what was computed since is of no use:
    call it before you save. On the CPU, attention itself raises.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if name := _open_name_of(group):
        ops.throw_if_failed(name)


def statistics(group=None) -> Statistics:
    """What this rank has done in the group. Attention with gradients off counts where no group is: see `alone`."""
    name = _open_name_of(group)
    if name is None:
        return Statistics(0, 0, 0, 0)
    *counts, plans = ops.counts(name)
    ahead = name and _open[name].ahead
    return Statistics(*counts, plans + (ops.counts(ahead)[-1] if ahead else 0))


@dataclass(frozen=True)
class Report:
    """How uneven attention was, and what balance makes of it. `print` shows it in one line."""

    calls: int  # of attention, in forward
    before: float  # work of the busiest rank over the mean, where each computes for its own tokens
    after: float  # the same, as they were planned
    sent_bytes: float  # in the forward of a layer, of a rank

    @property
    def speedup(self) -> float:
        """By how much faster attention is predicted to be, if messages are hidden."""
        return self.before / self.after

    def __str__(self) -> str:
        if not self.calls:
            return "no attention has been balanced yet"
        sent = f"{self.sent_bytes / 1e6:.1f} MB" if self.sent_bytes >= 1e5 else f"{self.sent_bytes / 1e3:.1f} kB"
        return (f"{self.calls} calls of attention: the busiest rank would have {self.before:.2f} times the mean, and has "
                f"{self.after:.2f}: {self.speedup:.2f} times as fast, for {sent} a layer and rank")


def report(group=None) -> Report:
    """How uneven the batches of a group were, the speed-up that balance predicts, and the bytes that it takes.

    group: as in `attention`, or an attached model of Transformers or one of Megatron-Core, wrapped or not, whose group is
    taken. Sums over all calls of attention so far that ranks computed together: work is attention's (query, key) pairs, and
    with `linear_work`, which `attach` gives for several nano-batches, the layers' other multiply-adds, too. It sends
    nothing, all ranks get the same, and one may ask alone.

    With `distca.shard`, `before` counts the pairs of the batches as the loaders gave them, whole on their ranks, without
    windows.
    """
    while isinstance(getattr(group, "module", None), torch.nn.Module):  # DDP and its like
        group = group.module
    if hasattr(group, "get_decoder"):
        group = import_module("distca.transformers").attached_of(group).group
    elif isinstance(group, torch.nn.Module) and "distca.megatron" in sys.modules:
        layers = [one for one in group.modules() if isinstance(one, sys.modules["distca.megatron"].CoreAttention)]
        group = layers[0].group if layers else group
    name = _open_name_of(group)
    calls = ops.counts(name)[0] if name else 0
    if not calls:
        return Report(0, 1.0, 1.0, 0.0)
    at_home, planned, mean, sent_bytes = ops.balance(name)
    most, given = _open[name].given
    before, after = (most / given if given else at_home / mean, planned / mean) if mean else (1.0, 1.0)
    return Report(calls, before, after, sent_bytes / calls / dist.get_world_size(resolved(group)))


def note_given(name, lengths):
    """Notes what a step would be without dealing. lengths: [ranks][documents] that the loaders gave."""
    pairs = [sum(length * (length + 1) for length in of_rank) for of_rank in lengths]
    if name and sum(pairs):
        most, mean = _open[name].given
        _open[name].given = most + max(pairs), mean + sum(pairs) / len(pairs)


def balanced_calls() -> int:
    """Calls of attention in all groups."""
    return sum(ops.counts(name)[0] for name in _names.values())


def alone() -> Statistics:
    """What this process has computed by itself: with gradients off, or without a group of several ranks."""
    return Statistics(*ops.counts(""))
