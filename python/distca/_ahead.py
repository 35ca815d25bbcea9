"""Plans one batch ahead, in a thread, while the step before it runs."""

import copy
import functools
import warnings
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from distca._attention import plan_for, waits_for
from distca._group import ahead_of, name_of
from distca._ops import ops
from distca._served import documents_of, in_pieces, state_of

_UNUSED = ("plan_ahead: attention was given another cu_seqlens tensor than the one that was planned ahead, and planned it "
           "again. DDP with device_ids and FSDP2 copy a call's tensors to the device: give them to the model inside an "
           "object of a class of your own")
_PREPARED = ("plan_ahead: Accelerate's prepare makes another loader of this one, whose batches are planned within their "
             "steps; to plan them ahead, call plan_ahead(accelerator.prepare(loader))")
_PROGRESS = ("end_of_dataloader", "remainder", "iteration", "dl_state_dict")  # what Accelerate's loaders tell of it
_threads = weakref.WeakValueDictionary()  # name of a group of ours -> the thread of its loops, while one of them runs
_END = object()  # in place of a batch where a loader has no more


@dataclass
class _Ahead:
    """What a plan_ahead has of its own. Its other attributes are those of the loader."""

    loader: object
    cu_seqlens: object
    group: object
    state: object = None  # the loader's state_dict() of the batch that trains, where the loader does not keep it itself


class plan_ahead:  # noqa: N801: it is called like a function
    """A loader that yields what `loader` yields, and has each batch planned before its forward begins.

    loader: what yields batches, for example a torch.utils.data.DataLoader. All ranks iterate over theirs alike.
      One such loop may run within another, an evaluation within a training for example.
    cu_seqlens: what takes a batch and returns the cu_seqlens tensor that its forward will give to attention, or several
      for the nano-batches of `ping_pong`. The very same tensors must reach attention: what is planned belongs to them.
      None takes batch["cu_seq_lens_q"], as Transformers' DataCollatorWithFlattening names it.
    group: as in `attention`.

    Before batch i is yielded, batch i + 1 is fetched. While batch i trains, a thread tells the other ranks the lengths of
    the documents of batch i + 1, and plans, over a second process group of DistCA's own. Layers are expected to be those
    of the latest forwards; others are planned when they come. So the first two batches, of which no forward is known, are
    planned at their layers. An error is raised in place of the batch that it belongs to.

    A loader that ends earlier on one rank than on another one raises a RuntimeError on all ranks, in one line that names
    the rank and says how many batches it had, in place of the batch that it lacks.

    Attributes are those of the loader, also where they are set, and so is the class where the loader is a DataLoader or
    one of Accelerate's. While a batch trains, such loaders tell what they would tell without plan_ahead: whether the
    batch is the last one, and their state_dict(). What Accelerate makes of a plan_ahead (`skip_first_batches`, `prepare`)
    yields the right batches, planned within their steps.

    With a model of `distca.transformers`, `cu_seqlens` is `distca.transformers.cu_seqlens_of(model)`.
    """

    def __init__(self, loader, cu_seqlens=None, group=None):
        object.__setattr__(self, "_ahead", _Ahead(loader, cu_seqlens, group))

    def __len__(self):
        return len(self._ahead.loader)

    @property
    def __class__(self):  # Accelerate asks for the class of a loader before it divides it or skips batches
        loader = self._ahead.loader
        return _class_of(type(loader), loader.__class__) if isinstance(loader, DataLoader) else plan_ahead

    def __getattr__(self, name):
        ahead = object.__getattribute__(self, "_ahead")
        if name == "state_dict" and ahead.state is not None:
            return lambda: ahead.state
        if name == "load_state_dict":
            ahead.state = None
        if name == "_is_accelerate_prepared" and not hasattr(ahead.loader, name):  # `prepare` asks before it takes it apart
            warnings.warn(_PREPARED, stacklevel=3)
        return getattr(ahead.loader, name)

    def __setattr__(self, name, value):
        setattr(self._ahead.loader, name, value)

    def __delattr__(self, name):
        delattr(self._ahead.loader, name)

    def __reduce__(self):
        return plan_ahead, (self._ahead.loader, self._ahead.cu_seqlens, self._ahead.group)

    def __iter__(self):
        ahead, loader = self._ahead, self._ahead.loader
        name, over = name_of(ahead.group), ahead_of(ahead.group)
        ahead.state = None
        if not name:
            yield from loader
            return
        tell = functools.partial(self._tell, _thread_of(over), name, over)
        batches, count, told, being_told = iter(loader), 0, [], []
        try:
            batch, told = _next(batches, lambda first: tell(0, first) if first is _END else self._check(first))
            while batch is not _END:
                count += 1
                for cu_seqlens, step, state in told:
                    step.result()  # raises here and not at the first layer: DDP may send before that, and wait
                    plan_for(cu_seqlens, name, step, state)
                progress, ahead.state = _progress_of(loader), _state_of(loader)
                following, being_told = _next(batches, functools.partial(tell, count))
                calls = ops.counts(name)[0]
                fetched = _set_back(loader, progress, following is _END)
                yield batch
                _go_on(loader, fetched, following is _END)
                if ops.counts(name)[0] > calls and any(waits_for(cu_seqlens, name) for cu_seqlens, *_ in told):
                    warnings.warn(_UNUSED, stacklevel=2)
                batch, told = following, being_told
            ahead.state = None
            for _, ended, _ in told:
                ended.result()
        finally:
            wait([step for _, step, _ in being_told])  # the group may be destroyed next

    def _check(self, batch) -> list:
        """Nothing is told of the first batch, whose layers nobody knows yet."""
        if self._ahead.cu_seqlens is None:
            _places_of(batch)
        return []

    def _tell(self, thread, name, over, count, batch) -> list:
        """[(cu_seqlens, the Future of a step, state_of(cu_seqlens))] of the batch's nano-batches.

        At the end, [(None, the Future of nothing, None)].
        """
        if batch is _END:
            return [(None, thread.submit(ops.end_ahead, over, count), None)]
        layers = ops.usual_layers(name)  # here and not in the thread: alike on all ranks
        cu_seqlens_of = self._ahead.cu_seqlens
        of_batch = cu_seqlens_of(batch) if cu_seqlens_of else _places_of(batch)
        states = [(one, state_of(one)) for one in ([of_batch] if isinstance(of_batch, torch.Tensor) else of_batch)]
        return [(one, thread.submit(_begin, name, over, one, state, layers), state) for one, state in states]


def _places_of(batch):
    if not (isinstance(batch, Mapping) and "cu_seq_lens_q" in batch):
        raise ValueError("a batch has no item cu_seq_lens_q: say where documents begin, plan_ahead(loader, lambda batch: ...)")
    return batch["cu_seq_lens_q"]


def _thread_of(over) -> ThreadPoolExecutor:
    """One for all loops of a group: where a loop runs within another, ranks exchange in the order of the program."""
    return _threads.setdefault(over, ThreadPoolExecutor(1, "distca-plan"))


def _next(batches, tell):
    """(the next batch or _END, what `tell` returns of it), or (None, [(None, the Future of an error, None)])."""
    try:
        batch = next(batches, _END)
        return batch, tell(batch)
    except Exception as error:
        failed = Future()
        failed.set_exception(error)
        return None, [(None, failed, None)]


@functools.cache
def _class_of(kind, shown):
    """A class that `isinstance` takes for the loader's, and for the one that it shows: those of Accelerate show DataLoader."""
    return kind if issubclass(kind, shown) else type("plan_ahead", (kind, shown), {})


def _state_of(loader):
    """A stateful loader's state, which it may change later. Accelerate's loaders keep theirs among _PROGRESS."""
    if not hasattr(loader, "state_dict") or hasattr(loader, "gradient_state"):
        return None
    state = loader.state_dict()
    try:
        return copy.deepcopy(state)
    except Exception:  # it has what cannot be copied, so it is new each time, or nobody could keep it
        return state


def _progress_of(loader) -> dict:
    """What a loader of Accelerate tells of how far it is; of another one nothing."""
    names = _PROGRESS if hasattr(loader, "gradient_state") else ()
    return {name: getattr(loader, name) for name in names if hasattr(loader, name)}


def _set_back(loader, progress, has_ended) -> dict:
    """Lets the loader tell what it told when the batch came that trains now; returns what it tells since."""
    fetched = {name: value for name, value in _progress_of(loader).items() if value is not progress[name]}
    for name in fetched:
        setattr(loader, name, progress[name])
    if has_ended and progress:
        loader.gradient_state._add_dataloader(loader)  # Accelerate asks the loader whether it is at its end
    return fetched


def _go_on(loader, fetched, has_ended):
    for name, value in fetched.items():
        setattr(loader, name, value)
    if has_ended and hasattr(loader, "gradient_state"):
        loader.end()


def _begin(name, over, cu_seqlens, state, layers):
    return ops.begin_ahead(name, over, documents_of(cu_seqlens, state=state), in_pieces(cu_seqlens), layers)
