import pytest
from rank_processes import Ranks


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also the long grids")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: a long grid, run with --full alone")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    long = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def two_ranks():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def three_ranks():
    with Ranks(3) as ranks:
        yield ranks
