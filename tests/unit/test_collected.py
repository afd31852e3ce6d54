"""Gradients are handed over an operation at a time, and nothing is launched any later for that."""

from hypothesis import given
from hypothesis import strategies as st

from bytelane.core import Plan, Scheduler, bucket_plan
from bytelane.runtime.sync.tensor_states import Collected


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Buckets of small tensors, and large ones in pieces, in any order."""
    sizes = draw(st.lists(st.integers(1, 100), min_size=1, max_size=10))
    order = draw(st.permutations(range(len(sizes))))
    return bucket_plan(sizes, draw(st.integers(1, 150)), order=order).cut(draw(st.integers(1, 60)))


@given(plans(), st.data())
def test_the_same_is_launched_at_the_same_gradient(plan: Plan, data: st.DataObject) -> None:
    one_by_one, together = Scheduler.of_plan(plan), Scheduler.of_plan(plan)
    batch = Collected(plan)
    for _ in range(2):  # rounds
        one_by_one.reset()
        together.reset()
        batch.begin()
        handed_over = []
        for tensor in data.draw(st.permutations(range(len(plan.tensor_bytes)))):
            starts = []
            if batch.add(tensor, used=True):
                waiting = [tensor for tensor, _ in batch.empty()]
                handed_over += waiting
                starts = together.notify_all_ready(waiting, 0.0)
            assert starts == one_by_one.notify_ready(tensor, 0.0)
        assert sorted(handed_over) == [*range(len(plan.tensor_bytes))]
        assert batch.empty() == []


def test_what_is_there_can_be_had_before_its_operation_is_complete() -> None:
    batch = Collected(bucket_plan([4, 4], 8))
    assert not batch.add(1, used=False)
    assert batch.empty() == [(1, False)]
    assert batch.add(0, used=True)
    assert batch.empty() == [(0, True)]
