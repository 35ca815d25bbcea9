"""What deals the tokens of a step over ranks: rows of token ids travel before the model runs, no activations."""

import json
import math
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, count, pairwise
from typing import NamedTuple

import torch

from distca._group import name_of, note_given
from distca._nano_batches import Part, deal, find_documents
from distca._ops import ops
from distca.pieces import cut, position_ids, rank_of
from distca.plan import plan_batch

IGNORED = -100  # a target that is none
DEALT = "distca_dealt"  # the item of a step that says what lies where: an object, as tensors may be copied on their way
_OF_BATCH = ("attention_mask", "labels", "num_items_in_batch", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_END = object()  # in place of a batch where a loader has no more
_SAME_BATCH = ("ranks {} and {} gave the same tokens: divide the loader among the ranks before it is dealt "
               "(accelerator.prepare(loader), DistributedSampler)")


class Dealt:
    """A step as one rank sees it: its pieces, and how rows travel from the ranks whose loaders gave them.

    It is no dataclass. DDP and FSDP rebuild those on the way to the model, and what the model notes in a copy is lost.

    name: of the group.
    pieces: [nano-batches] its pieces, as attention gets them.
    rows: [nano-batches] of how many rows.
    targets: of the step on all ranks.
    samples: that their loaders have put into it: its rows, or its documents where these are packed in one row.
    is_cut: some rank has a piece that does not begin its document.
    sends: of the rows that this rank's loader gave, those that go to each rank.
    receives: of this rank's rows, those that come from each rank.
    """

    is_last = False  # no step comes after it
    is_taken = False  # an attached model was called with it
    trained = 0  # how often, with gradients
    is_missed = False  # an attached model was called with its tokens and without it, in training

    def __init__(self, **fields):
        vars(self).update(fields)

    def deal(self, rows):
        """[own, ...] -> [rows, ...]"""
        return self._exchanged(rows, self.sends, self.receives)

    def back(self, rows):
        """[rows, ...] -> [own, ...]"""
        return self._exchanged(rows, self.receives, self.sends)

    def _exchanged(self, rows, sends, receives):
        got = ops.exchange_rows(self.name, rows.detach().cpu()[sends.rows].contiguous(), sends.counts, receives.counts)
        return torch.empty_like(got).index_copy_(0, receives.rows, got).to(rows.device)

    def parts(self, trains) -> list:
        """[nano-batches] The rows and pieces of each, for a forward of an attached model.

        A second forward with gradients has copies of the pieces: by them, recomputation finds the forward that it belongs to.
        Raises ValueError where a whole model is recomputed, which gets the first one's pieces, after two forwards.
        """
        is_again = torch._C._current_graph_task_id() != -1  # within a backward
        if is_again and self.trained > 1:
            raise ValueError("several forwards with one step of shard wait for their backwards, and what is checkpointed is the whole "
                             "model: checkpoint its layers (gradient_checkpointing_enable)")
        pieces = [seg.clone() for seg in self.pieces] if trains and self.trained and not is_again else self.pieces
        self.is_taken, self.trained = True, self.trained + (trains and not is_again)
        begins = accumulate(self.rows, initial=0)
        return [Part(_run(begin, begin + rows), seg) for begin, rows, seg in zip(begins, self.rows, pieces)]


_input_ids_of = weakref.WeakKeyDictionary()  # the steps whose batches are in use -> a weak reference to their input_ids


def _is_same(tokens, mine) -> bool:
    return tokens.is_set_to(mine) or bool((tokens.to(mine) == mine).all())


def _steps_with(shape):
    """(a step over several ranks, its input_ids), for each that is in use and has this shape."""
    for dealt, reference in list(_input_ids_of.items()):
        mine = reference()
        if mine is not None and mine.shape == shape and mine.numel() and len(dealt.sends.counts) > 1:
            yield dealt, mine


@torch.compiler.disable
def is_cut(tokens) -> bool:
    """Whether these are the input_ids of a step over several ranks, or a copy of those of a step whose documents are cut."""
    return any(tokens.is_set_to(mine) or (dealt.is_cut and _is_same(tokens, mine)) for dealt, mine in _steps_with(tokens.shape))


@torch.compiler.disable
def note_call_without(shape, tokens):
    """A model is called in training without a step's item, with these tokens [rows, tokens] or, None, with embeddings."""
    for dealt, mine in _steps_with(torch.Size(shape)):
        dealt.is_missed |= tokens is None or _is_same(tokens, mine)


def _run(begin, end):
    return torch.arange(begin, end, device="cpu")


def _digest(tokens) -> int:
    """Of a batch that is long enough to be told from another one by it; else 0."""
    weights = torch.arange(1, len(tokens) + 1, device="cpu")
    return int((tokens * weights).sum()) if len(tokens) >= 32 else 0


def _check_labels(labels, tokens):
    """Labels are shifted here. Those that are the next tokens already would be shifted twice, and nobody would notice."""
    counts = labels[..., :-1] != IGNORED
    following, own = (int((labels[..., :-1] == ids)[counts].sum()) for ids in (tokens[..., 1:], tokens[..., :-1]))
    if following > max(0.9 * int(counts.sum()), own, 1):  # the label of a document's last token may be anything
        raise ValueError("labels are the next tokens already, and shard shifts labels: call them shift_labels")


def _read(batch) -> tuple[dict, list]:
    """(name -> [tokens] of the items that are dealt, the lengths of the documents). Raises ValueError."""
    if not isinstance(batch, Mapping):
        raise ValueError(f"a batch that is dealt over ranks is a dictionary, not of type {type(batch).__name__}")
    if DEALT in batch:
        raise ValueError("this batch is dealt already: give the loader itself, not the steps that shard made of it")
    given = {name: value for name, value in batch.items() if value is not None}
    tokens, mask = given.get("input_ids"), given.get("attention_mask")
    if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2:
        found = list(tokens.shape) if isinstance(tokens, torch.Tensor) else "none"
        raise ValueError(f"a batch that is dealt over ranks has input_ids [rows, tokens], this one has {found}")
    if mask is not None and (mask.dim() != 2 or not bool((mask == 1).all())):
        raise ValueError("attention_mask is not all ones: a batch that is dealt over ranks is packed (DataCollatorWithFlattening)")
    labels = given.get("labels")
    if labels is not None and "shift_labels" not in given:
        if not isinstance(labels, torch.Tensor) or labels.shape != tokens.shape or labels.is_floating_point():
            raise ValueError(f"labels have no integer for each token of input_ids {list(tokens.shape)}")
        _check_labels(labels, tokens)
        given["shift_labels"] = torch.nn.functional.pad(given["labels"], (0, 1), value=IGNORED)[..., 1:]
    shape, columns = tuple(tokens.shape), {}
    for name, value in given.items():
        if name in _OF_BATCH:
            continue
        has_integers = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
        if name == "position_ids" and has_integers and value.dim() == 2 and value.shape == (1, shape[1]):
            value = value.expand(shape)
        if not has_integers or tuple(value.shape) != shape:
            raise ValueError(f"{name} has no integer for each token of input_ids {list(shape)}: it cannot be dealt over ranks, "
                             "leave it out (documents begin where position_ids are 0)")
        column = value.cpu().flatten()
        columns[name] = column if column.dtype == torch.bool else column.long()
    return columns, [end - begin for begin, end in pairwise(find_documents(shape, given))]


class Dealer:
    """What deals the steps of a group. All ranks call `told` and `dealt` alike."""

    def __init__(self, group, shape, at_once, nano_batches, gradients, device=None):
        """device: where an attached model's batches belong, which has pieces in the object alone, and rows of padding if none.

        None: the caller's module is given pieces.
        """
        head_dim = shape.head_dim + -shape.head_dim % 8  # of any size in attention, which rounds it up, too
        self.group, self.shape = group, shape._replace(head_dim=head_dim)
        self.nano_batches, self.gradients = nano_batches, gradients
        self.device, self.is_plain = device or "cpu", device is None
        self.has_warned = False
        self.gives_labels = False  # besides shift_labels: all -100, so that a model computes its loss
        self.samples = None  # [batches of this rank's loader] how many samples each has, where that is known
        self.under_way = None  # the step that was yielded last, while a loop runs
        self.rank, self.ranks = rank_of(group)
        self.at_once = self.ranks if at_once is None else at_once
        if not isinstance(self.at_once, int) or self.at_once < 1 or self.ranks % self.at_once:
            raise ValueError(f"at_once = {at_once!r}: how many of {self.ranks} ranks' batches make a step, a divisor of it")
        if gradients not in ("mean", "sum"):
            raise ValueError(f"gradients = {gradients!r}: 'mean' or 'sum'")

    def told(self, batch, batches, error) -> tuple[dict, list]:
        """(this rank's columns, what each rank has). Raises RuntimeError, on all ranks, where that does not fit together."""
        columns, mine = {}, {"ended": batch is _END, "batches": batches}
        if error is not None:
            mine["error"] = f"its loader failed: {error}"
        try:
            if batch is not None and batch is not _END:
                columns, lengths = _read(batch)
                targets = int((columns["shift_labels"] != IGNORED).sum()) if "shift_labels" in columns else 0
                rows = batch["input_ids"].shape[0]
                samples = rows if rows > 1 else sum(map(bool, lengths))
                if self.samples is not None and batches < len(self.samples):
                    samples = self.samples[batches]
                flags = [name for name, column in columns.items() if column.dtype == torch.bool]
                mine |= {"lengths": lengths, "names": sorted(columns), "flags": flags, "targets": targets, "samples": samples,
                         "digest": _digest(columns["input_ids"])}
        except Exception as raised:
            mine["error"] = str(raised) if isinstance(raised, ValueError) else f"{type(raised).__name__}: {raised}"
        said = [json.loads(text) for text in ops.all_texts(name_of(self.group), json.dumps(mine))]
        names = [(rank, one["names"]) for rank, one in enumerate(said) if "names" in one]
        for rank, one in enumerate(said):
            if "error" in one:
                raise RuntimeError(f"rank {rank}: {one['error']}")
        for rank, these in names:
            if these != names[0][1]:
                raise RuntimeError(f"rank {rank} gives {', '.join(these)}, rank {names[0][0]} {', '.join(names[0][1])}: "
                                   "the batches of all ranks have the same items")
        digests = [one["digest"] for one in said if one.get("digest")]
        if not self.has_warned and len(set(digests)) < len(digests):
            same = next(one for one in digests if digests.count(one) > 1)
            warnings.warn(_SAME_BATCH.format(*[rank for rank, one in enumerate(said) if one.get("digest") == same][:2]), stacklevel=2)
            self.has_warned = True
        return columns, said

    def dealt(self, columns, said, first) -> dict:
        """This rank's batch of what the ranks `first` to `first + at_once` give."""
        givers = [one if first <= rank < first + self.at_once else {} for rank, one in enumerate(said)]
        lengths = [length for one in givers for length in one.get("lengths", ())]
        begins = [0, *accumulate(sum(one.get("lengths", ())) for one in givers)]
        pieces, layout = _laid_out(lengths, self.ranks, self.shape, self.nano_batches)
        mine = [torch.tensor(of_part, dtype=torch.int64, device="cpu").view(-1, 3) for of_part in pieces[self.rank]]
        padding = torch.tensor([[-1 - self.rank, 0, 1]], device="cpu")
        sends, receives = _routes(self.rank, layout, begins)
        dealt = Dealt(
            name=name_of(self.group),
            pieces=[seg if self.is_plain or len(seg) else padding.clone() for seg in mine],
            rows=[sum(end - begin for _, begin, end in of_part) for of_part in pieces[self.rank]],
            targets=sum(one.get("targets", 0) for one in givers),
            samples=sum(one.get("samples", 0) for one in givers),
            is_cut=any(begin for of_rank in pieces for of_part in of_rank for _, begin, _ in of_part),
            sends=sends, receives=receives,
        )
        names, flags = next(((one["names"], one["flags"]) for one in said if "names" in one), (["input_ids", "shift_labels"], []))
        own = [columns[name].long() for name in names] if len(dealt.sends.rows) else [torch.zeros(0, dtype=torch.int64, device="cpu")] * len(names)
        rows = dealt.deal(torch.stack(own, 1))
        batch = {name: rows[:, i][None].to(torch.bool if name in flags else torch.int64).contiguous() for i, name in enumerate(names)}
        if "position_ids" not in batch:
            batch["position_ids"] = position_ids(torch.cat(mine))[None]
        if "shift_labels" in batch and self.gives_labels:
            batch["labels"] = torch.full_like(batch["shift_labels"], IGNORED)  # whoever shifts them trains on nothing
        batch = {name: value.to(self.device) for name, value in batch.items()}
        if self.is_plain:
            batch["pieces"] = dealt.pieces[0]
        _input_ids_of[dealt] = weakref.ref(batch["input_ids"])
        batch[DEALT] = dealt
        return batch

    def each(self, loader):
        """The batches of this rank. Raises RuntimeError where one rank's loader ends before another's."""
        for columns, said in self._told_of(loader):
            for rank, one in enumerate(said):
                if one["ended"] != said[0]["ended"]:
                    ended, other = (rank, 0) if one["ended"] else (0, rank)
                    raise RuntimeError(f"the loader of rank {ended} ended after {said[ended]['batches']} batches, that of rank "
                                       f"{other} goes on: all ranks have equally many batches (drop_last=True)")
            note_given(name_of(self.group), [one.get("lengths", ()) for one in said])
            for first in range(0, self.ranks, self.at_once):
                yield self.dealt(columns, said, first)

    def until_all_have_ended(self, loader):
        """The same, where ranks may have unequal numbers of batches, and steps without tokens are left out."""
        for columns, said in self._told_of(loader):
            for first in range(0, self.ranks, self.at_once):
                if any(one.get("lengths") for one in said[first : first + self.at_once]):
                    yield self.dealt(columns, said, first)

    def _told_of(self, loader):
        """What `told` returns of each batch, until all ranks' have ended. An error of this rank's loader is raised on all."""
        batches = iter(loader)
        for number in count():
            batch = error = None
            try:
                batch = next(batches, _END)
            except Exception as raised:
                error = raised
            try:
                columns, said = self.told(batch, number, error)
            except RuntimeError:
                if error is not None:
                    raise error from None
                raise
            if all(one["ended"] for one in said):
                return
            yield columns, said

    def sums_of(self, mine) -> list:
        """The sums over all ranks, in their order."""
        of_ranks = [json.loads(text) for text in ops.all_texts(name_of(self.group), json.dumps(mine))]
        return [math.fsum(values) for values in zip(*of_ranks)]


def _laid_out(lengths, ranks, shape, nano_batches):
    """[ranks][nano-batches][pieces] of documents of these lengths, and [ranks] the ranges of their rows in the batch."""
    begins = [0, *accumulate(lengths)]
    pieces, layout = [[] for _ in range(ranks)], [[] for _ in range(ranks)]
    for documents in deal(lengths, nano_batches):
        places = [0, *accumulate(lengths[document] for document in documents)]
        plan = plan_batch(places, ranks, shape)
        for rank, ranges in enumerate(plan.tokens):
            found = [(documents[i], begin, end) for i, begin, end in cut(places, ranges)]
            pieces[rank].append(found)
            layout[rank] += [(begins[document] + begin, begins[document] + end) for document, begin, end in found]
    return pieces, layout


class _Rows(NamedTuple):
    """Rows that travel between a rank and all ranks."""

    rows: torch.Tensor  # which ones, rank by rank
    counts: list  # [ranks] how many


def _routes(rank, layout, begins) -> tuple[_Rows, _Rows]:
    """What a rank sends and receives.

    layout: [ranks] the ranges of each rank's rows in the batch. begins: [ranks + 1] where the rows that each rank gives begin.
    """
    first, last = begins[rank], begins[rank + 1]
    sent = [[_run(max(begin, first) - first, min(end, last) - first)
             for begin, end in ranges if max(begin, first) < min(end, last)] for ranges in layout]
    received, row = [[] for _ in layout], 0  # of this rank
    for begin, end in layout[rank]:
        while begin < end:
            giver = bisect_right(begins, begin) - 1
            rows = min(end, begins[giver + 1]) - begin
            received[giver].append(_run(row, row + rows))
            begin, row = begin + rows, row + rows

    def joined(parts):
        rows = torch.cat([one for of_rank in parts for one in of_rank] or [_run(0, 0)])
        return _Rows(rows, [sum(map(len, of_rank)) for of_rank in parts])

    return joined(sent), joined(received)
