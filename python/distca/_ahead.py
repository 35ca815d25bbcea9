"""Plans one batch ahead, in a thread, while the step before it runs."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

from distca._attention import offsets_of, plan_for, waits_for
from distca._group import ahead_of, name_of
from distca._ops import ops

_UNUSED = ("plan_ahead: attention was given another cu_seqlens tensor than the one that was planned ahead, and planned it "
           "again. DDP with device_ids and FSDP2 copy a call's tensors to the device: give them to the model inside an "
           "object of a class of your own")
_END = object()  # in place of a batch where a loader has no more


class plan_ahead:  # noqa: N801: it is called like a function
    """A loader that yields what `loader` yields, and has each batch planned before its forward begins.

    loader: what yields batches, for example a torch.utils.data.DataLoader. All ranks iterate over theirs alike.
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

    With a model of `distca.transformers`, `cu_seqlens` is `distca.transformers.cu_seqlens_of(model)`.
    """

    def __init__(self, loader, cu_seqlens=None, group=None):
        self.loader, self.group = loader, group
        self._cu_seqlens = cu_seqlens or (lambda batch: batch["cu_seq_lens_q"])

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):  # what a loader has besides, such as dataset and sampler
        if name in ("loader", "group"):  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self):
        name, over = name_of(self.group), ahead_of(self.group)
        if not name:
            yield from self.loader
            return
        with ThreadPoolExecutor(1, "distca-plan") as thread:
            batches, count = iter(self.loader), 0
            batch, told = next(batches, _END), []
            if batch is _END:
                told = self._tell(batch, count, thread, name, over)
            while batch is not _END:
                count += 1
                for cu_seqlens, step in told:
                    step.result()  # raises here and not at the first layer: DDP may send before that, and wait
                    plan_for(cu_seqlens, name, step)
                following = next(batches, _END)
                being_told = self._tell(following, count, thread, name, over)
                calls = ops.counts(name)[0]
                yield batch
                if ops.counts(name)[0] > calls and any(waits_for(cu_seqlens, name) for cu_seqlens, _ in told):
                    warnings.warn(_UNUSED, stacklevel=2)
                batch, told = following, being_told
            for _, ended in told:
                ended.result()

    def _tell(self, batch, count, thread, name, over) -> list:
        """[(cu_seqlens, the Future of a step)] of the batch's nano-batches; at the end, [(None, the Future of nothing)]."""
        if batch is _END:
            return [(None, thread.submit(ops.end_ahead, over, count))]
        layers = ops.usual_layers(name)  # here and not in the thread: alike on all ranks
        of_batch = self._cu_seqlens(batch)
        return [(one, thread.submit(_begin, name, over, one, layers))
                for one in ([of_batch] if isinstance(of_batch, torch.Tensor) else of_batch)]


def _begin(name, over, cu_seqlens, layers):
    return ops.begin_ahead(name, over, offsets_of(cu_seqlens), layers)
