"""TIC and TAC on real graphs, by hand and against the slow reference."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.core.tictac import tac_order, tic_order
from bytelane.job import Job, Layer, Tensor
from reference import Graph
from reference import tac_order as reference_tac
from reference import tic_order as reference_tic

A, B, C, D = range(4)


def lecture(seconds: float = 1.0) -> Job:
    """A is needed first; then B and C, independently of each other; D needs both."""
    layers = (
        Layer("a", seconds, 1.0),
        Layer("b", seconds, 1.0, after=(0,)),
        Layer("c", seconds, 1.0, after=(0,)),
        Layer("d", seconds, 1.0, after=(1, 2)),
    )
    return Job("lecture", layers, tuple(Tensor(n, 8, (i,)) for i, n in enumerate("abcd")))


def test_tic_receives_the_first_layer_first_and_lets_independent_ones_tie() -> None:
    assert tic_order(lecture()) == [1, 2, 2, 4]


def test_tac_prefers_the_smaller_blocker() -> None:
    order = tac_order(lecture(seconds=2.0), transfer_s=[1.0, 3.0, 1.0, 1.0])
    assert sorted(range(4), key=order.__getitem__) == [A, C, B, D]


def test_on_a_chain_both_receive_in_the_order_of_need() -> None:
    layers = tuple(Layer(f"l{i}", 1.0, 1.0) for i in range(3))
    job = Job("chain", layers, tuple(Tensor(f"t{i}", 8, (i,)) for i in (2, 0, 1)))
    assert tic_order(job) == [2, 0, 1]
    assert tac_order(job, [1.0, 1.0, 1.0]) == [2, 0, 1]


@st.composite
def graphs(draw: st.DrawFn) -> Job:
    """Each layer reads any earlier ones, has positive time, and at most one tensor."""
    count = draw(st.integers(1, 6))
    layers = []
    for i in range(count):
        after = draw(st.sets(st.integers(0, i - 1))) if i else set()
        layers.append(Layer(f"l{i}", draw(st.integers(1, 8)) / 8, 1.0, after=tuple(sorted(after))))
    owners = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    tensors = tuple(Tensor(f"t{i}", draw(st.integers(1, 64)), (i,)) for i in sorted(owners))
    return Job("graph", tuple(layers), tensors)


def as_reference(job: Job) -> Graph[Fraction]:
    receives = {tensor.name: Fraction(tensor.bytes, 8) for tensor in job.tensors}
    needs = {
        layer.name: [job.layers[i].name for i in layer.after or ()]
        + [tensor.name for tensor in job.tensors if index in tensor.layers]
        for index, layer in enumerate(job.layers)
    }
    times = {layer.name: Fraction(layer.forward_s) for layer in job.layers}
    return Graph(receives, times, needs)


@given(graphs())
def test_the_slow_reference_agrees_on_tic(job: Job) -> None:
    rank = tic_order(job)
    expected = [[int(name[1:]) for name in tied] for tied in reference_tic(as_reference(job))]
    owners = [tensor.layers[0] for tensor in job.tensors]
    found: dict[int, list[int]] = {}
    for owner, place in zip(owners, rank, strict=True):
        found.setdefault(place, []).append(owner)
    assert [found[place] for place in sorted(found)] == expected


@given(graphs())
def test_the_slow_reference_agrees_on_tac(job: Job) -> None:
    place = tac_order(job, [tensor.bytes / 8 for tensor in job.tensors])
    names = [job.tensors[t].name for t in sorted(range(len(place)), key=place.__getitem__)]
    assert names == reference_tac(as_reference(job))


def test_a_layer_cannot_come_after_itself_or_a_later_one() -> None:
    with pytest.raises(ValueError, match=r"comes after layers \[1\], but it is number 1 itself"):
        Job("loop", (Layer("a", 1.0, 1.0), Layer("b", 1.0, 1.0, after=(1,))), ())
