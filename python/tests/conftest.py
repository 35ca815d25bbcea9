import pytest
from rank_processes import Ranks


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also the long grids")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: a long grid, run with --full alone")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def two_ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks():
    with Ranks(3) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two():
    """Of one module alone, as `four` is: its process groups are no other module's."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four():
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def eight():
    """For long grids."""
    with Ranks(8) as ranks:
        yield ranks
