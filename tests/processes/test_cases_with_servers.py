"""Every case of the table through parameter servers, which are processes of their own."""

import pytest

from cases import CASES, variants
from cases.trial import Report, complaints, refusal, report
from ranks import Pool

REFUSED = [(title, way) for title, way in variants(2) if CASES[title].outcome == "refused"]
TRAINED = [found for found in variants(2) if found not in REFUSED]
# A parameter that is read between two passes arrives here without those that the first pass has not
# reached. They follow with the second pass, and the other rank waits for them.
WAITS = ("parameters that are not used, with accumulation", "every pass is summed")


def found_wrong(title: str, way: str, reports: list[Report]) -> list[str]:
    found = complaints(CASES[title], reports)
    if (title, way) != WAITS:
        return found
    assert found, "it does not wait any more: the exception can go"
    return [one for one in found if not one.startswith("step() waits for the other ranks: True")]


@pytest.mark.parametrize(("title", "way"), TRAINED)
def test_two_workers_train_as_under_ddp(two_ranks: Pool, title: str, way: str) -> None:
    key = f"{title}, {way}, with servers"
    reports = two_ranks.run(report, title=title, way=way, key=key, sync="ps")
    found = complaints(CASES[title], reports)
    if (title, way) == WAITS:
        assert [one.partition(";")[0] for one in found] == [
            "step() waits for the other ranks: True"
        ]
    else:
        assert found == []


@pytest.mark.parametrize(("title", "way"), REFUSED)
def test_what_all_reduce_refuses_is_refused(two_ranks: Pool, title: str, way: str) -> None:
    for sentence, before_training in two_ranks.run(refusal, title=title, way=way, sync="ps"):
        assert CASES[title].says in sentence
        assert before_training


@pytest.mark.parametrize(("title", "way"), variants(4))
def test_four_workers_agree(four_ranks: Pool, title: str, way: str) -> None:
    key = f"{title}, {way}, with servers"
    reports = four_ranks.run(report, title=title, way=way, key=key, sync="ps")
    assert found_wrong(title, way, reports) == []
