"""Rates over time, from a file; taken at their moments while a command runs."""

import threading
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import InputError
from bytelane.lab import Lab, Step, load_schedule
from bytelane.lab.schedule import following
from labs import need

steps = st.lists(
    st.builds(
        Step,
        st.floats(0, 1e6).map(lambda s: round(s, 3)),
        st.integers(1, 100_000).map(lambda mbit: mbit * 125_000.0),
        st.none() | st.integers(0, 3),
    ),
    min_size=1,
)


def as_rate(step: Step) -> str:
    return f"{step.rate * 8 / 1e6:.0f}Mbit"


@given(steps)
def test_both_kinds_of_files_give_the_same_steps_in_order(
    tmp_path_factory: pytest.TempPathFactory, given_steps: list[Step]
) -> None:
    folder = tmp_path_factory.mktemp("schedule")
    rows = [
        {"at_s": s.at_s, "rate": as_rate(s)} | ({} if s.host is None else {"host": s.host})
        for s in given_steps
    ]
    (folder / "s.toml").write_text(tomli_w.dumps({"step": rows}))
    lines = ["at_s,rate,host", *(f"{r['at_s']},{r['rate']},{r.get('host', '')}" for r in rows)]
    (folder / "s.csv").write_text("\n".join(lines))
    expected = tuple(sorted(given_steps, key=lambda s: s.at_s))
    assert load_schedule(folder / "s.toml", 4) == load_schedule(folder / "s.csv", 4) == expected


def test_a_csv_file_may_have_spaces_and_no_host(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("at_s, rate\n1.5, 200Mbit\n0, 1Gbit\n")
    assert load_schedule(file, 2) == (Step(0, 1.25e8), Step(1.5, 2.5e7))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.csv", "", "no steps"),
        ("s.csv", "at_s,rate,host\n", "no steps"),
        ("s.csv", "at_s,rate\n1,fast\n", "step 1: 'fast' is not a rate"),
        ("s.csv", "at_s,rate\n0,1Gbit\nsoon,1Gbit\n", "step 2: could not convert"),
        ("s.csv", "at_s,rate\n-1,1Gbit\n", "at 0 seconds or later"),
        ("s.csv", "at_s,rate\nnan,1Gbit\n", "at 0 seconds or later"),
        ("s.csv", "at_s,rate,host\n1,1Gbit,4\n", "no host 4; hosts are 0 to 3"),
        ("s.csv", "at_s,rate,host\n1,1Gbit,-1\n", "no host -1"),
        ("s.csv", "seconds,rate\n1,1Gbit\n", "'seconds' is not one of at_s, rate, host"),
        ("s.csv", "at_s,rate\n1,1Gbit,0,5\n", "'one too many' is not one of"),
        ("s.csv", "at_s,rate\n1\n", "it has no rate"),
        ("s.toml", "[[step]]\nat_s = 1\n", "it has no rate"),
        ("s.toml", "[[step]]\nrate = '1Gbit'\n", "it has no at_s"),
        ("s.toml", "[[step]]\nat_s = 1\nrate = 5\n", "has no unit"),
        ("s.toml", "[[steps]]\nat_s = 1\n", "nothing else"),
        ("s.toml", "step = 5\n", "nothing else"),
        ("s.toml", "[[", "s.toml: "),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        load_schedule(file, 4)


def test_steps_are_taken_in_order_and_none_after_the_end() -> None:
    taken: list[tuple[float, int | None]] = []
    second = threading.Event()

    def set_rate(rate: float, host: int | None) -> None:
        taken.append((rate, host))
        if len(taken) == 2:
            second.set()

    with following([Step(0, 1.0), Step(0.01, 2.0, 1), Step(1000, 3.0)], set_rate):
        assert second.wait(20)
    assert taken == [(1.0, None), (2.0, 1)]


def test_a_step_that_fails_is_told_at_the_end() -> None:
    tried = threading.Event()

    def set_rate(rate: float, host: int | None) -> None:
        tried.set()
        raise InputError("no such rate")

    with pytest.raises(InputError, match="no such rate"), following([Step(0, 1.0)], set_rate):
        assert tried.wait(20)


def test_a_lab_follows_a_schedule_while_a_command_runs() -> None:
    need("namespace")
    lines = []
    script = 'until tc qdisc show dev lane0 | grep "rate 77Mbit"; do sleep 0.05; done'
    with Lab(2, "100Mbit") as lab:
        code = lab.run(
            ["sh", "-c", f"[ $RANK = 0 ] || {{ {script}; }}"],
            schedule=[Step(0.2, 77e6 / 8, 1)],
            output=lambda rank, stream, line: lines.append((rank, stream)),
            timeout_s=20,
        )
        assert code == 0
        assert lab.rates == [12.5e6, 77e6 / 8]
    assert lines == [(1, "out")]
