"""Pieces of documents that are cut over ranks: which tokens of which documents the rows of a rank are.

    seg = distca.pieces.contiguous(cu_seqlens)  # cu_seqlens of the packed batch of all ranks, the same on each
    tokens = batch[distca.pieces.indices(seg, cu_seqlens)]  # this rank's rows; RoPE takes distca.pieces.position_ids(seg)
    o = distca.attention(q, k, v, seg, seg, layer=3)

Pieces are a tensor [pieces, 3] of int64 on the CPU: document, begin and end of each run of a rank's rows, in their
order. What takes `cu_seqlens_q` takes them in its place. Documents are numbered as in `cu_seqlens`. Groups of ranks that
have batches of their own and share their attention number them apart: `seg[:, 0] += first_document`.

Nothing here sends a message. Bad input raises ValueError in one line. Any thread may call anything.
"""

from bisect import bisect_right

import torch
import torch.distributed as dist

from distca._group import resolved

__all__ = ["contiguous", "indices", "of_ranges", "position_ids", "zigzag"]


def contiguous(cu_seqlens, group=None) -> torch.Tensor:
    """The pieces of this rank where each rank has a run of the packed batch, all of equal length to within a token.

    Of T tokens, rank r of N has r * T // N to (r + 1) * T // N. Hugging Face's sequence parallelism and the llama3
    functions of ring-flash-attention lay tokens so.

    cu_seqlens: [documents + 1] where each document of the packed batch of all ranks begins, and where the last one ends.
    group: as in `attention`.
    """
    rank, ranks = rank_of(group)
    tokens = _places(cu_seqlens)[-1]
    return of_ranges(cu_seqlens, [(rank * tokens // ranks, (rank + 1) * tokens // ranks)])


def zigzag(cu_seqlens, group=None) -> torch.Tensor:
    """The pieces of this rank where each document is cut into 2 N chunks, and rank r of N has chunks r and 2 N - 1 - r.

    A document of L tokens is cut at i * L // (2 N). Megatron-Core and the zigzag functions of ring-flash-attention lay
    the tokens of packed documents so. The arguments are those of `contiguous`.
    """
    rank, ranks = rank_of(group)
    places, ranges = _places(cu_seqlens), []
    for first, last in zip(places, places[1:]):
        for chunk in (rank, 2 * ranks - 1 - rank):
            ranges.append(tuple(first + (last - first) * cut // (2 * ranks) for cut in (chunk, chunk + 1)))
    return of_ranges(cu_seqlens, ranges)


def of_ranges(cu_seqlens, ranges) -> torch.Tensor:
    """The pieces of rows that are these ranges of the packed batch, in their order.

    cu_seqlens: as in `contiguous`.
    ranges: (begin, end) of each, in tokens: `plan.tokens[rank]` of `distca.plan`, for example.
    """
    return torch.tensor(cut(_places(cu_seqlens), ranges), dtype=torch.int64, device="cpu").view(-1, 3)


def cut(places, ranges) -> list:
    """`of_ranges` as a list [pieces][3]."""
    pieces = []
    for begin, end in ranges:
        if not 0 <= begin <= end <= places[-1]:
            raise ValueError(f"tokens {begin} to {end} are no range of a batch of {places[-1]} tokens")
        document = bisect_right(places, begin) - 1
        while begin < end:
            first, until = places[document], min(end, places[document + 1])
            if pieces and pieces[-1][::2] == [document, begin - first]:
                pieces[-1][2] = until - first
            elif begin < until:
                pieces.append([document, begin - first, until - first])
            begin, document = until, document + 1
    return pieces


def indices(pieces, cu_seqlens) -> torch.Tensor:
    """[rows] The places of a rank's rows in the packed batch of all ranks, by documents that are numbered as in cu_seqlens."""
    first = torch.as_tensor(cu_seqlens, dtype=torch.int64, device="cpu")[pieces[:, 0]]
    return _counted(first + pieces[:, 1], first + pieces[:, 2])


def position_ids(pieces) -> torch.Tensor:
    """[rows] The place of each of a rank's rows in its document."""
    return _counted(pieces[:, 1], pieces[:, 2])


def _counted(begins, ends) -> torch.Tensor:
    """begin, begin + 1, ..., end - 1 of each range."""
    lengths = ends - begins
    skipped = begins - (lengths.cumsum(0) - lengths)  # between the range and the row at which it begins
    return torch.arange(int(lengths.sum()), device="cpu") + skipped.repeat_interleave(lengths)


def rank_of(group) -> tuple[int, int]:
    """This rank within the group, and the group's size."""
    group = resolved(group)
    return (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))


def _places(cu_seqlens) -> list:
    places = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else list(cu_seqlens)
    if not places or places[0] != 0 or any(b < a for a, b in zip(places, places[1:])):
        raise ValueError("cu_seqlens begins with 0 and never descends")
    return places
