"""Every case of the table, on four processes: all ranks alike, and DDP's weights up to rounding."""

import pytest

from cases import CASES, variants
from cases.trial import complaints, report
from ranks import Pool

TRAINED = [(title, way) for title, way in variants(4) if CASES[title].outcome != "servers"]


@pytest.mark.parametrize(("title", "way"), TRAINED)
def test_four_ranks_agree(four_ranks: Pool, title: str, way: str) -> None:
    reports = four_ranks.run(report, title=title, way=way, key=f"{title}, {way}")
    assert complaints(CASES[title], reports) == []
