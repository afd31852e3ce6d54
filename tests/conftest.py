"""What every test shares."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from ranks import Pool

# Who starts the tests in the background may have had these ignored, and everything that the tests
# start would inherit that: Ctrl-C would do nothing.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        ordinary = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, ordinary)

# Timing does not belong in tests, least of all on a machine that others use too.
settings.register_profile("bytelane", deadline=None)
settings.load_profile("bytelane")


@pytest.fixture(scope="module", autouse=True)
def labs_end_as_they_would(request: pytest.FixtureRequest) -> Iterator[None]:
    """Do not measure the coverage of what a lab starts: writing it down delays its end."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__.startswith("test_lab"):
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        yield


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Pool]:
    """Two processes that stay for the whole run, so that a case costs well under a second."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Pool]:
    with Pool(4) as pool:
        yield pool


@pytest.fixture
def fresh_ranks() -> Iterator[Pool]:
    """Two processes for one test: nothing that an earlier test has done helps or hurts."""
    with Pool(2) as pool:
        yield pool
