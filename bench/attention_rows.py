"""The rows that bench/attention.py measures, one after another."""

import collections
import itertools
import random

ISAS = ("avx512_bf16", "avx512", "avx2", "portable")  # the best first
CONTEXT = 8192  # tokens of the long sequence that shards are held against, and about those of their contexts
SHARDS = (16, 128)  # queries; the last have a bar
MOST_PAIRS = 9 << 20  # (query, key) pairs of one measurement, summed over heads: from 2,048 tokens on fewer heads

# `kind`: "lengths", one causal sequence with each of `isas`, beside PyTorch; "shards" of several sizes against one long
# sequence; "threads", one causal sequence on several threads against one. Only `kv_used` key heads are computed, with
# their query heads: the memory of a whole layer in the time of a few heads.
Row = collections.namedtuple("Row", "kind format head_dim heads kv_heads kv_used length isas")


def name(row):
    """"lengths fp32 d64 8:8 512": what --only selects by."""
    return f"{row.kind} {row.format} d{row.head_dim} {row.heads}:{row.kv_heads} {row.length}"


def rows(available):
    """For a machine that has these instruction sets."""
    sizes = list(itertools.product(("fp32", "bf16"), (64, 128), (512, 2048, CONTEXT)))

    def best(form, count=1):
        return [isa for isa in ISAS if isa in available and (form == "bf16" or isa != "avx512_bf16")][:count]

    for form, head_dim, length in sizes:
        used = next(used for used in (8, 4, 2, 1) if used == 1 or used * pairs([(0, length)]) <= MOST_PAIRS)
        with_avx2 = form == "fp32" and "avx512" in available
        yield Row("lengths", form, head_dim, 8, 8, used, length, best(form, 2 if with_avx2 else 1))
    for form, heads, head_dim in itertools.product(("fp32", "bf16"), (4, 1), (64, 128)):
        yield Row("shards", form, head_dim, heads, 1, 1, CONTEXT, best(form))
    for form, head_dim, length in sizes:
        yield Row("threads", form, head_dim, 8, 8, 2 if length > 2048 else 8, length, best(form))


def pairs(runs):
    """(query, key) pairs of causal runs (position, queries), of one head."""
    return sum(queries * position + queries * (queries + 1) // 2 for position, queries in runs)


def shards_of(queries):
    """Runs of `queries` queries that begin at multiples of 128, with contexts around CONTEXT, and together about as many
    pairs as one sequence of CONTEXT tokens."""
    draw, left, runs = random.Random(queries), pairs([(0, CONTEXT)]), []
    while True:
        run = ((CONTEXT - queries) // 128 * 128 + 128 * draw.randint(-4, 4), queries)
        if pairs([run]) / 2 > left:
            return runs
        runs.append(run)
        left -= pairs([run])
