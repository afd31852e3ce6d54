"""A knob that a policy declares is known to Python, commands, sweeps and the contract."""

import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import bytelane
from bytelane import api
from bytelane.cli.main import app
from bytelane.cli.simulate import summary
from bytelane.core import Knob, Knobs, choose_knobs, make_policy, policy_entry, register
from bytelane.core.policy import _registry
from bytelane.errors import InputError
from bytelane.job import zoo
from bytelane.knob import CREDIT, FUSION, PARTITION, TAKEN
from bytelane.report.sweep import all_axes, records
from bytelane.sim.sweep import make_settings, sweep
from bytelane.testing import ContractBroken, PolicyContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_knob.py"


@pytest.fixture(autouse=True)
def _platoon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the example's policy, for the length of a test."""
    monkeypatch.setattr("bytelane.core.policy._registry", dict(_registry))
    spec = importlib.util.spec_from_file_location("own_knob", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def simulated(**knobs: Any) -> float:
    return bytelane.simulate("resnet50", policy="platoon", overhead="1ms", **knobs).iteration_s


class TestPlatoon(PolicyContract):
    """The example keeps the contract, which turns its own knob, too."""

    policy = "platoon"
    examples = 5


def test_it_is_a_keyword() -> None:
    assert simulated(cars=4) == simulated() != simulated(cars=1) == simulated(cars="1")
    job = zoo.make("resnet50")
    one, other, fifo = api.simulate_each(job, ["platoon", "platoon", "fifo"], cars=2)
    assert (
        one.iteration_s
        == other.iteration_s
        == bytelane.simulate(job, policy="platoon", cars=2).iteration_s
    )
    assert fifo.policy == "fifo"


@pytest.mark.parametrize(
    ("knobs", "complaint"),
    [
        ({"cars": 0}, "cars is 0; it must be 1 to 256"),
        ({"cars": 257}, "cars is 257; it must be 1 to 256"),
        ({"cars": 2.5}, "cars is 2.5; it must be a whole number"),
        ({"cars": "many"}, "cars is 'many'; it must be a whole number"),
        ({"cras": 2}, r"there is no argument cras \(it is 2\); did you mean cars"),
        ({"partition": 8}, "partition has no effect under policy platoon; leave it out"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(knobs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        simulated(**knobs)
    with pytest.raises(InputError, match=complaint):
        bytelane.prepare(None, None, policy="platoon", **knobs)  # type: ignore[type-var]


def test_under_another_policy_it_has_no_effect() -> None:
    with pytest.raises(InputError, match="cars has no effect under policy fifo; leave it out"):
        bytelane.simulate("resnet50", policy="fifo", cars=2)
    with pytest.raises(InputError, match="cars has no effect under fifo or p3; leave it out"):
        api.simulate_each(zoo.make("resnet50"), ["fifo", "p3"], cars=2)


def test_it_is_an_option() -> None:
    shown = json.loads(
        run("simulate", "resnet50", "--policy=platoon", "--knob", "cars=7", "--json").output
    )
    assert shown["cars"] == 7
    assert shown["partition_bytes"] is None
    assert (
        shown["iteration_ms"]
        == 1000 * bytelane.simulate("resnet50", policy="platoon", cars=7).iteration_s
    )
    assert "--knob" in run("simulate", "--help").output


def test_it_is_listed() -> None:
    assert (
        "cars: Tensors per message.\n    default 4, range 1 to 256"
        in run("policies", "platoon").output
    )
    every = run("policies").output
    assert "for allreduce; knobs: cars\n" in every
    assert "for allreduce and ps; knobs: partition, credit, first\n" in every
    (platoon,) = [
        p for p in json.loads(run("policies", "--json").output) if p["policy"] == "platoon"
    ]
    assert platoon["knobs"] == [
        {
            "knob": "cars",
            "key": "cars",
            "kind": "count",
            "default": 4,
            "times": None,
            "least": 1,
            "most": 256,
            "about": "Tensors per message.",
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy=platoon", "--knob=cars=0"], "cars is 0; it must be 1 to 256"),
        (["--policy=platoon", "--knob=cars"], "must be written like first=256KiB"),
        (["--policy=platoon", "--knob=cars=2", "--knob=cars=3"], "knob 'cars' is given twice"),
        (["--policy=p3", "--knob=partition=8", "--partition=8"], "'partition' is given twice"),
        (["--policy=p3", "--knob=cars=3"], "cars has no effect under policy p3"),
        (["--knob=workers=3"], "there is no knob workers"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(arguments: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        CliRunner().invoke(app, ["simulate", "resnet50", *arguments], catch_exceptions=False)


def test_it_is_an_axis_of_a_sweep(tmp_path: Path) -> None:
    arguments = ["sweep", "resnet50", "--policy", "platoon,fifo", "--knob", "cars=2,8", "--json"]
    answers = json.loads(run(*arguments).output)["answers"]
    assert [(a["policy"], a["cars"]) for a in answers] == [
        ("platoon", 2),
        ("platoon", 8),
        ("fifo", None),
    ]
    csv = tmp_path / "found.csv"
    run(*arguments[:-1], "--csv", str(csv))
    assert "fusion_bytes,cars," in csv.read_text()
    assert "cars" in run(*arguments[:-1]).output.splitlines()[2]


class Deaf(PolicyContract):
    policy = "deaf"


def test_the_contract_notices_a_knob_that_nobody_reads() -> None:
    loudness = Knob("loudness", "How loud it is.", default=1, kind="number", least=0.5, most=2)

    @register("deaf", sync=("allreduce",), knobs=[loudness])
    def deaf(job: Any, cluster: Any, knobs: Knobs) -> Any:
        """Send in ready order."""
        return make_policy("fifo", job, cluster)

    with pytest.raises(ContractBroken, match=r"loudness from 0.5 to 2.0 makes no difference"):
        Deaf().test_a_declared_knob_has_an_effect()


# --- declarations ---------------------------------------------------------------------------------


def test_a_default_may_be_a_multiple_of_another_knob() -> None:
    assert CREDIT.with_default(3).default_among({"partition": 10}) == 30
    assert choose_knobs("p3", partition_bytes=10) == Knobs(10, 10)


@pytest.mark.parametrize(
    ("knob", "complaint"),
    [
        (lambda: Knob("workers", "Workers."), "cannot be called workers"),
        (lambda: Knob("size_bytes", "A size."), "cannot be called size_bytes"),
        (lambda: Knob("two words", "Words."), "use small letters, digits and _"),
        (lambda: Knob("silent", ""), "knob silent has no help"),
        (lambda: Knob("odd", "Odd.", kind="colour"), "use bytes, count, number"),  # type: ignore[arg-type]
        (lambda: Knob("high", "High.", default=9, kind="count", most=5), "high is 9; it must be 1"),
        (lambda: register("x", knobs=["cars"]), "it must be a Knob"),  # type: ignore[list-item]
        (lambda: register("x", knobs=[PARTITION, PARTITION]), "declares knob partition twice"),
        (lambda: register("x", knobs=[CREDIT.with_default(2)]), "is a multiple of partition"),
        (
            lambda: register("x", knobs=[Knob("fusion", "Tensors.", kind="count")]),
            "fusion is a size under every policy",
        ),
    ],
)
def test_a_declaration_that_would_mislead_is_refused(knob: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        knob()


def test_the_older_way_to_declare_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="declare the knobs of policy old as knobs="):
        register("old", partition_bytes=8, parts_in_flight=2, fusion_bytes=16)(
            lambda job, cluster, knobs: make_policy("fifo", job, cluster)
        )
    wanted = (PARTITION.with_default(8), CREDIT.with_default(2), FUSION.with_default(16))
    assert policy_entry("old").knobs == wanted
    with pytest.warns(DeprecationWarning, match="policy older"):
        register("older", parts_in_flight=2)(policy_entry("fifo").maker)
    assert choose_knobs("older") == Knobs()
    assert choose_knobs("older", credit_bytes=5) == Knobs(credit_bytes=5)


def test_no_knob_can_have_the_name_of_an_argument_or_of_a_key() -> None:
    functions = (api.simulate, api.make_cluster, api.prepare, api.replan)
    arguments = {name for f in functions for name in inspect.signature(f).parameters}
    declared = {"partition", "credit", "fusion", "others"}
    assert arguments - declared <= set(TAKEN)
    found = bytelane.simulate("resnet50")
    asked = make_settings([found.job], [found.cluster], ["fifo"])
    (record,) = records(list(sweep(asked)))
    keys = {*summary(found), *record, *(axis.name for axis in all_axes(asked))}
    units = ("_ms", "_bytes", "_s")
    assert {key for key in keys if not key.endswith(units)} - declared <= set(TAKEN)
