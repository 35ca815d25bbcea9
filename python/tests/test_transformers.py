"""A step of random Transformers models on several ranks against one process with sdpa, document by document."""

import itertools

import pytest

pytest.importorskip("transformers")

from pairs import pairs_of  # noqa: E402
from transformers_model import CONFIGS, compare  # noqa: E402

LENGTHS = {
    "odd": [[13, 301, 5, 77], [129, 3], [211]],
    "one token": [[1, 1, 300, 1], [1], [257, 1]],
    "an empty rank": [[400, 37], [], [131]],
    "a long document": [[901], [31, 2], [200]],
}
# Of the loss, and of the worst gradient, relative. bf16 rounds weights and activations to 8 bits, autocast activations.
BOUND = {"fp64": (1e-10, 1e-10), "fp32": (1e-5, 1e-5), "autocast": (2e-3, 1e-1), "bf16": (2e-3, 1e-1)}
VALUES = {
    "kind": list(CONFIGS),
    "precision": list(BOUND),
    "lengths": list(LENGTHS),
    "checkpointing": ["none", "whole", "selective"],
    "nano_batches": [1, 2],
    "parallel": ["ddp", "fsdp2"],
    "compiled": ["", "layers", "whole"],
    "size": [2, 3],
}


def check(ranks, kind, precision, lengths, *how):
    """One step with those values, and whether anything was sent."""
    checkpointing, nano_batches, parallel, compiled, _ = how
    found = ranks.run(compare, kind, precision, nano_batches, parallel, checkpointing, compiled,
                      LENGTHS[lengths][: ranks.size])
    of_loss, of_gradients = BOUND[precision]
    assert max(loss for loss, _, _ in found) < of_loss, found
    assert max(gradient for _, gradient, _ in found) < of_gradients, found
    assert sum(sent for _, _, sent in found) > 0, "nothing was balanced"


@pytest.mark.parametrize("case", pairs_of(**VALUES), ids=str)
def test_loss_and_gradients_are_those_of_one_process(two_ranks, three_ranks, case):
    check(two_ranks if case[-1] == 2 else three_ranks, *case)


@pytest.mark.full
def test_a_model_that_inductor_compiles(two_ranks):
    """The other cases compile for another backend (aot_eager), which traces alike and generates no code."""
    check(two_ranks, "llama", "fp32", "odd", "none", 2, "ddp", "inductor", 2)


GRID = list(itertools.product(*(VALUES[name] for name in VALUES if name not in ("lengths", "size"))))


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(GRID)), ids=lambda number: str(GRID[number]))
def test_the_whole_grid(two_ranks, three_ranks, number):
    """All lengths and numbers of ranks, in turn where compiling takes most of the time."""
    kind, precision, checkpointing, nano_batches, parallel, compiled = GRID[number]
    cases = list(itertools.product(LENGTHS, (two_ranks, three_ranks)))
    for lengths, ranks in cases[number % len(cases) :][:1] if compiled else cases:
        check(ranks, kind, precision, lengths, checkpointing, nano_batches, parallel, compiled, ranks.size)
