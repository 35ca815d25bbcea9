"""Context parallelism as others have it, for bench/context.py, with the kernel of DistCA: all are fp32 on the CPU.

A layout says which tokens of a packed batch a rank has; attend(q, k, v) of a method takes this rank's rows, [rows, heads,
dim], and returns O with its gradients. `received` counts the bytes that this rank gets from others.
"""

import heapq

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

import distca.pieces
from cpu_attention import Attention


def forward(q, k, v, ranges):
    """(O, LSE) of the rows that see keys; the others have 0 and -inf."""
    o, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
    if ranges:
        Attention(ranges, dict(q=q, k=k, v=v, o=o, lse=lse)).run("forward")
    return o, lse


def backward(q, k, v, lse, d_o, delta, ranges, dq, dk, dv):
    """Adds to dq, dk and dv."""
    if ranges:
        Attention(ranges, dict(q=q, k=k, v=v, lse=lse, d_o=d_o, delta=delta, dq=dq, dk=dk, dv=dv)).run("backward")


def ranges_between(queries, keys):
    """What the kernel computes of these queries and keys, both as pieces [pieces][3] in the order of their rows."""
    found, q_row = [], 0
    for document, begin, end in queries:
        k_row, of_query = 0, []
        for other, first, last in keys:
            seen = min(last, end)
            if other == document and first < seen:
                of_query.append([q_row, end - begin, begin, k_row, seen - first, first])
            k_row += last - first
        found += sorted(of_query, key=lambda row: row[5])
        q_row += end - begin
    return found


class _Local(torch.autograd.Function):
    """Attention of rows whose keys are all here."""

    @staticmethod
    def forward(ctx, q, k, v, ranges):
        o, lse = forward(q, k, v, ranges)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.ranges = ranges
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        d_o = d_o.contiguous()
        gradients = [torch.zeros_like(one) for one in (q, k, v)]
        backward(q, k, v, lse, d_o, (d_o * o).sum(-1), ctx.ranges, *gradients)
        return *gradients, None


class Method:
    """One way to share a packed batch. places: where documents begin and end."""

    def __init__(self, places):
        self.rank, self.ranks, self.received = dist.get_rank(), dist.get_world_size(), 0
        self.places = torch.tensor(places)
        self.pieces = self.layout()
        self.indices = distca.pieces.indices(self.pieces, self.places)

    def layout(self):
        return distca.pieces.contiguous(self.places)

    def exchanged(self, tensor):
        """all_to_all of equal parts along the first dimension."""
        tensor = tensor.contiguous()
        out = torch.empty_like(tensor)
        dist.all_to_all_single(out, tensor)
        self.received += tensor.numel() * tensor.element_size() * (self.ranks - 1) // self.ranks
        return out


class WholeDocuments(Method):
    """Documents whole on ranks, by Karmarkar and Karp on squared lengths: `batch_rebalance` of Transformers' Trainer."""

    def layout(self):
        pairs = list(zip(self.places.tolist(), self.places.tolist()[1:]))
        heap = [(-(end - begin) ** 2, number, [(0, [])] * (self.ranks - 1) + [((end - begin) ** 2, [number])])
                for number, (begin, end) in enumerate(pairs)]
        heapq.heapify(heap)
        while len(heap) > 1:
            (_, tie, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
            sums = sorted(((a + b, documents + more) for (a, documents), (b, more) in zip(one, reversed(other))),
                          key=lambda part: part[0])
            least = sums[0][0]
            heapq.heappush(heap, (least - sums[-1][0], tie, [(total - least, documents) for total, documents in sums]))
        mine = sorted(heap[0][2][self.rank][1])
        return distca.pieces.of_ranges(self.places, [pairs[number] for number in mine])

    def attend(self, q, k, v):
        pieces = self.pieces.tolist()
        return _Local.apply(q, k, v, ranges_between(pieces, pieces))


class AllGather(Method):
    """Each rank has a run of the batch and gathers K and V of all ranks: the llama3 functions of ring-flash-attention."""

    def attend(self, q, k, v):
        kv = _Gather.apply(torch.stack((k, v), 1), self)
        whole = [[document, 0, int(end - begin)] for document, (begin, end) in enumerate(zip(self.places, self.places[1:]))]
        k, v = (one.contiguous() for one in kv.unbind(1))
        return _Local.apply(q, k, v, ranges_between(self.pieces.tolist(), whole))


class _Gather(torch.autograd.Function):
    """[rows, ...] -> [rows of all ranks, ...]; all ranks have equally many."""

    @staticmethod
    def forward(ctx, rows, method):
        ctx.method = method
        out = rows.new_empty(method.ranks * len(rows), *rows.shape[1:])
        dist.all_gather_into_tensor(out, rows.contiguous())
        method.received += (method.ranks - 1) * rows.numel() * rows.element_size()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return ctx.method.exchanged(gradient).view(ctx.method.ranks, -1, *gradient.shape[1:]).sum(0), None


class Ulysses(Method):
    """Each rank has some of the heads of all tokens (DeepSpeed-Ulysses).

    K and V are repeated where there are more ranks than heads of theirs.
    """

    def attend(self, q, k, v):
        repeats = max(1, self.ranks // k.shape[1])
        k, v = (one.repeat_interleave(repeats, 1) for one in (k, v))
        heads = [q.shape[1] // self.ranks, k.shape[1] // self.ranks]
        # [rows, heads, dim] -> [ranks, rows, own heads of q, k and v, dim]
        sent = torch.cat([one.unflatten(1, (self.ranks, -1)) for one in (q, k, v)], 2).transpose(0, 1)
        q, k, v = (one.contiguous() for one in _Swap.apply(sent, self).flatten(0, 1).split([heads[0], heads[1], heads[1]], 1))
        whole = [[document, 0, int(end - begin)] for document, (begin, end) in enumerate(zip(self.places, self.places[1:]))]
        o = _Local.apply(q, k, v, ranges_between(whole, whole))
        return _Swap.apply(o.unflatten(0, (self.ranks, -1)), self).transpose(0, 1).flatten(1, 2)


class _Swap(torch.autograd.Function):
    """all_to_all of [ranks, ...]."""

    @staticmethod
    def forward(ctx, rows, method):
        ctx.method = method
        return method.exchanged(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return ctx.method.exchanged(gradient), None


class ZigzagRing(Method):
    """K and V go round in a ring; rank r has chunks r and 2 N - 1 - r of each document (zigzag_ring_flash_attn_varlen)."""

    def layout(self):
        self.blocks = []  # of each rank, as lists
        places = self.places.tolist()
        for rank in range(self.ranks):
            cuts = [(begin + (end - begin) * chunk // (2 * self.ranks), begin + (end - begin) * (chunk + 1) // (2 * self.ranks))
                    for begin, end in zip(places, places[1:]) for chunk in (rank, 2 * self.ranks - 1 - rank)]
            self.blocks.append(distca.pieces.of_ranges(self.places, cuts))
        return self.blocks[self.rank]

    def attend(self, q, k, v):
        return _Ring.apply(q, k, v, self)

    def block_at(self, hop):
        """The rank whose keys are here after so many hops."""
        return (self.rank - hop) % self.ranks

    def passed_on(self, tensor, rows):
        """Starts to send it to the next rank, and to receive [rows, ...] of the one before."""
        out = tensor.new_empty(rows, *tensor.shape[1:])
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, after), dist.P2POp(dist.irecv, out, before)])
        self.received += out.numel() * out.element_size()
        return out, works

    def rows_of(self, rank):
        return int((self.blocks[rank][:, 2] - self.blocks[rank][:, 1]).sum())

    def ranges(self, hop):
        return ranges_between(self.pieces.tolist(), self.blocks[self.block_at(hop)].tolist())


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, ring):
        kv, o, lse = torch.stack((k, v)).transpose(0, 1).contiguous(), None, None
        for hop in range(ring.ranks):
            if hop + 1 < ring.ranks:
                coming, works = ring.passed_on(kv, ring.rows_of(ring.block_at(hop + 1)))
            part, part_lse = forward(q, *(one.contiguous() for one in kv.unbind(1)), ring.ranges(hop))
            if o is None:  # of its own keys, of which a query sees one at least
                o, lse = part, part_lse
            else:
                both = torch.logaddexp(lse, part_lse)
                o.mul_((lse - both).exp_().unsqueeze(-1)).addcmul_(part, (part_lse - both).exp_().unsqueeze(-1))
                lse = both
            if hop + 1 < ring.ranks:
                for work in works:
                    work.wait()
                kv = coming
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.ring = ring
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        ring, d_o = ctx.ring, d_o.contiguous()
        delta, dq = (d_o * o).sum(-1), torch.zeros_like(q)
        kv, d_kv, works_of_gradients = torch.stack((k, v), 1), None, []
        for hop in range(ring.ranks):
            if hop + 1 < ring.ranks:
                coming, works = ring.passed_on(kv, ring.rows_of(ring.block_at(hop + 1)))
            parts = [one.contiguous() for one in kv.unbind(1)]
            gradients = [torch.zeros_like(one) for one in parts]
            backward(q, *parts, lse, d_o, delta, ring.ranges(hop), dq, *gradients)
            for work in works_of_gradients:  # what ranks before have added of this block
                work.wait()
            mine = torch.stack(gradients, 1)
            d_kv = mine if d_kv is None else mine.add_(d_kv)
            d_kv, works_of_gradients = ring.passed_on(d_kv, ring.rows_of(ring.block_at(hop + 1)))
            if hop + 1 < ring.ranks:
                for work in works:
                    work.wait()
                kv = coming
        for work in works_of_gradients:
            work.wait()
        return dq, d_kv[:, 0], d_kv[:, 1], None


METHODS = {"all-gather": AllGather, "whole documents": WholeDocuments, "Ulysses": Ulysses, "zigzag ring": ZigzagRing}
