"""Every entry of Transformers' table of causal language models is equal to sdpa, a document at a time, or refused by name.

A run plays entries in the order of a seed (DISTCA_SEED), as many as it has time for; --full plays all."""

import os
import random
import time

import pytest

pytest.importorskip("transformers")

from causal_models import NAMES, outcome  # noqa: E402

SECONDS, LEAST, MOST_NOT_BUILT = 12, 4, 15


def test_some_models_are_equal_or_refused_by_name():
    end, found = time.monotonic() + SECONDS, {}
    names = random.Random(int(os.environ.get("DISTCA_SEED", "1"))).sample(NAMES, len(NAMES))
    while len(found) < LEAST or time.monotonic() < end and names:
        name = names.pop()
        found[name] = outcome(name)
    assert [(name, *what) for name, what in found.items() if what[0] == "wrong"] == []


@pytest.mark.full
def test_all_models_are_equal_or_refused_by_name():
    found = {name: outcome(name) for name in NAMES}
    assert [(name, *what) for name, what in found.items() if what[0] == "wrong"] == []
    assert sum(what == "not built" for what, _ in found.values()) <= MOST_NOT_BUILT
