"""Figures that are printed side by side never contradict each other, whatever was measured."""

import re
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.bench import Cell, CommunicationOnly, ComputeOnly, Ddp, Experiment, Ours, Result
from bytelane.bench.script import Difference, Outcome, Trial
from bytelane.bench.script.trial import BYTELANE, COMMUNICATION, COMPUTE, DDP
from bytelane.cli import bench_output, try_output
from bytelane.cluster import Link
from bytelane.core import Knobs, bucket_plan
from bytelane.job import Job, Layer, Tensor
from bytelane.tune.auto import describe
from bytelane.tune.page import lines
from bytelane.tune.search import Candidate, Choice
from bytelane.units import NOISE, is_below, parse_seconds

times = st.floats(1e-4, 10)
slightly_more = st.floats(1, 1.5) | st.just(1.0)
PLAN = bucket_plan([8], 8, 1, [0])
JOB = Job("one", (Layer("layer", 1.0, 1.0),), (Tensor("tensor", 8, (0,)),))


@st.composite
def candidates(draw: st.DrawFn, name: str) -> Candidate:
    """A prediction takes no less than computing and communication do."""
    compute, communication = draw(times), draw(times)
    takes = draw(slightly_more) * max(compute, communication)
    return Candidate(PLAN, name, takes, Knobs(), 0.0, compute, communication)


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    """Candidates of different measurements: the model is measured again while plans are tried."""
    plain, scheduled = draw(candidates("plain buckets")), draw(candidates("units"))
    other = draw(candidates("another"))
    return Choice(draw(st.sampled_from([plain, scheduled, other])), plain, scheduled)


def seconds_in(text: str) -> Iterator[float]:
    return (
        parse_seconds(found) for found in re.findall(r"-?[\d.]+(?:e-?\d+)? (?:s|ms|us|ns)\b", text)
    )


def row(text: list[str], name: str) -> str:
    return next(line for line in text if line.strip().startswith(name))


def value(line: str) -> float:
    return next(seconds_in(line))


@given(choices(), times, times)
def test_a_page_has_no_figure_that_cannot_be(choice: Choice, real_s: float, busy_s: float) -> None:
    text = lines(choice, real_s, busy_s)
    assert "-" not in "".join(re.findall(r"  (\S+) (?:s|ms|us|ns) ", "\n".join(text)))
    bound = value(row(text, "lower bound"))
    alone = [value(row(text, name)) for name in ("computing alone", "communication alone")]
    assert bound == max(alone)
    for name in ("plain buckets", "scheduled"):
        assert value(row(text, name)) >= bound * (1 - 1e-3)
    below = value(row(text, "iteration")) < bound
    assert below == (NOISE in row(text, "lower bound"))
    idle = row(text, "link idle")
    assert (busy_s > real_s) == (NOISE in idle) == ("not known" in idle)
    if busy_s <= real_s:
        assert 0 <= value(idle) <= value(row(text, "iteration"))


@given(choices())
def test_a_verdict_follows_from_the_numbers_beside_it(choice: Choice) -> None:
    plain = msgspec.structs.replace(choice, taken=choice.plain)
    said = describe(plain)
    computing, sending, takes, bound = seconds_in(said)
    assert bound == max(computing, sending)
    assert takes >= bound * (1 - 1e-3)
    verdict = "compute-bound" if computing > sending else "network-bound"
    assert ("balanced" if computing == sending else verdict) in said
    if "balanced" not in said:
        ratio = float(re.findall(r"bound ([\d.]+):1", said)[0])
        shown = max(computing, sending) / min(computing, sending)
        assert ratio == pytest.approx(shown, rel=0.06)


def outcome(ddp: float, ours: float, compute: float, communication: float) -> Outcome:
    by_arm = {DDP: ddp, BYTELANE: ours, COMPUTE: compute, COMMUNICATION: communication}
    cells = tuple(Cell(arm, ((seconds,),)) for arm, seconds in by_arm.items())
    trial = Trial("train.py", repetitions=1)
    return Outcome(trial, 2, cells, 40, 2**30, (), Difference(), "", Difference(), True)


@given(times, slightly_more, slightly_more, slightly_more)
def test_a_trial_says_where_a_figure_cannot_be(a: float, b: float, c: float, d: float) -> None:
    found = outcome(a * b, a * c, a * d, a)
    said = "\n".join(try_output._verdict(found))
    compared, most = (
        re.findall(r"([\d.]+)x (?:faster|SLOWER)", said),
        re.findall(r"be ([\d.]+)x", said),
    )
    assert ("as fast as" in said) == (not compared)
    assert compared != ["1.00"]
    faster = float(compared[0]) if compared and "faster" in said else 0.0
    assert (float(most[0]) < 1) == ("while DDP was not running" in said)
    if float(most[0]) >= 1:
        assert (faster > float(most[0])) <= (NOISE in said)
    if NOISE in said:
        assert is_below(found.seconds(BYTELANE), found.bound_s)


@given(times, slightly_more, slightly_more)
def test_a_benchmark_says_who_is_below_the_bound(a: float, b: float, c: float) -> None:
    link = Link(1e9)
    cells = tuple(
        Cell(contender, ((seconds,),))
        for contender, seconds in (
            (ComputeOnly(), a),
            (CommunicationOnly(), a * b),
            (Ddp(2**20), a * c),
            (Ours("fifo", Knobs()), 2 * a * b),
        )
    )
    result = Result(JOB, 2, link, link, cells, True)
    experiment = Experiment(JOB, 2, tuple(cell.contender for cell in cells), repetitions=1)
    said = "\n".join(bench_output._remarks(result, experiment))
    column = [bench_output._row(cell, result)[3] for cell in cells]
    below = [
        cell.contender.name for cell, text in zip(cells, column, strict=True) if text < "1.00x"
    ]
    # To be below it is what the longer one of both alone is for.
    assert ("DDP, 1 MiB buckets" in below) == (NOISE in said)
    assert "fifo" not in said
