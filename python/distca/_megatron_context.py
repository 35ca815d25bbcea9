"""Context parallelism of Megatron-Core: which pieces of which documents the rows of a rank are.

Megatron cuts each packed document, or each sequence of a batch, into 2 CP chunks of one length, and rank r of the CP
ranks of a context-parallel group has chunks r and 2 CP - 1 - r of it.

Nothing here sends a message. Bad input raises ValueError in one line.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from distca._served import documents_of, state_of
from distca.pieces import position_ids, zigzag

_BITS = 32  # of a document's number that count the documents of its context-parallel group


@dataclass(frozen=True)
class Context:
    """The ranks that each of their documents is cut over."""

    group: dist.ProcessGroup
    ranks: tuple  # of it, numbered as all ranks are
    first_document: int  # groups that share their attention number their documents apart

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def chunks(self) -> int:
        """Into how many a document is cut."""
        return 2 * self.size

    def positions(self, s) -> torch.Tensor:
        """[s / CP] Where in a sequence of s tokens those of this rank lie."""
        return position_ids(zigzag([0, s], self.group))


def context_of(group, shared) -> Context:
    """group: the context-parallel ranks. shared: all ranks that share attention."""
    ranks, of_all = (dist.get_process_group_ranks(one) for one in (group, shared))
    if not set(ranks) <= set(of_all):
        raise ValueError(f"the context-parallel group has ranks {ranks}, and that of data- and context-parallel ranks "
                         f"(pg_collection.dp_cp) {of_all}: all of the first and more")
    return Context(group, tuple(ranks), of_all.index(ranks[0]) << _BITS)


_pieces = WeakIdKeyDictionary()  # cu_seqlens -> (context, the state of cu_seqlens, pieces)


def pieces_of(cu_seqlens, context) -> torch.Tensor:
    """[pieces, 3] of this rank: one tensor for the layers of a forward, which get one cu_seqlens.

    cu_seqlens: of the documents of the whole context-parallel group.
    """
    state = state_of(cu_seqlens) or (None, cu_seqlens.tolist())
    found = _pieces.get(cu_seqlens)
    if found is None or found[:2] != (context, state):
        if cu_seqlens.dim() != 1:
            raise ValueError(f"packed_seq_params.cu_seqlens_q has shape {list(cu_seqlens.shape)}: [documents + 1]")
        found = context, state, pieces_at(documents_of(cu_seqlens, state=state), context)
        _pieces[cu_seqlens] = found
    return found[2]


def pieces_at(places, context) -> torch.Tensor:
    """[pieces, 3] of this rank, of documents that begin and end at these places."""
    for document, (begin, end) in enumerate(zip(places, places[1:])):
        if (end - begin) % context.chunks != 0:
            raise ValueError(f"document {document} has {end - begin} tokens under context_parallel_size = {context.size}: "
                             f"a multiple of {context.chunks}, with room behind it (cu_seqlens_q_padded) if need be")
    with torch.inference_mode(False):  # training may come with the same cu_seqlens
        pieces = zigzag(places, context.group)
        pieces[:, 0] += context.first_document
    return pieces


def is_room(cu_seqlens, pieces) -> torch.Tensor:
    """[rows] Whether a row belongs to no document. pieces: of documents with the room behind them."""
    documents = pieces[:, 0] % (1 << _BITS)
    lengths = cu_seqlens.diff().cpu()[documents]
    return position_ids(pieces) >= lengths.repeat_interleave(pieces[:, 2] - pieces[:, 1])
