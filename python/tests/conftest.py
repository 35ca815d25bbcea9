import pytest
from rank_processes import Ranks


@pytest.fixture(scope="session")
def two_ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks():
    with Ranks(3) as ranks:
        yield ranks
