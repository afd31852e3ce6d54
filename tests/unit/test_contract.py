"""Every policy keeps the contract, and every way of breaking it is noticed by just one rule."""

import subprocess
import sys
from typing import Any

import msgspec
import pytest

import mutants
from bytelane.cluster import Cluster, Collective, LinkUse
from bytelane.core import CreditWindow, Pieces, Plan, Policy, partition, policy_names, register
from bytelane.core import kernel as core_kernel
from bytelane.core import policy as policy_module
from bytelane.errors import InputError
from bytelane.job import Job
from bytelane.sim import kernel as sim_kernel
from bytelane.testing import ContractBroken, PolicyContract, policy_contract
from mutants import BREAKS, REGISTERED, Maker

RULES = [name for name in vars(PolicyContract) if name.startswith("test_")]


class TestOurs(PolicyContract):
    """Each policy that is built in."""

    @pytest.fixture(autouse=True, params=policy_names())
    def _each(self, request: pytest.FixtureRequest) -> None:
        self.policy = request.param


def broken_rules(name: str, rules: list[str] = RULES) -> dict[str, str]:
    """Return what each broken rule says. The odd worlds suffice, so one random world is enough."""
    contract = type("Contract", (PolicyContract,), {"policy": name, "examples": 1})()
    found = {}
    for rule in rules:
        try:
            getattr(contract, rule)()
        except ContractBroken as broken:
            found[rule] = str(broken)
        except pytest.skip.Exception:
            continue
    return found


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "_registry", dict(policy_module._registry))
    mutants.asked.clear()


def as_mutant(maker: Maker) -> str:
    register("mutant", **{"sync": ("allreduce",)} | REGISTERED[maker])(maker)
    return "mutant"


@pytest.mark.parametrize(("maker", "rule"), BREAKS, ids=[maker.__name__ for maker, _ in BREAKS])
def test_a_mutant_breaks_its_rule_and_no_other(maker: Maker, rule: str) -> None:
    found = broken_rules(as_mutant(maker))
    assert list(found) == [rule], found


@pytest.mark.parametrize(
    "maker", [mutants.right, mutants.right_but_choosy, mutants.right_with_growing_units]
)
def test_what_is_right_breaks_none(maker: Maker) -> None:
    assert broken_rules(as_mutant(maker)) == {}


# --- rules that guard the kernels, too ------------------------------------------------------------


def forgets_the_window(state: Any, lane: int) -> int:
    credit = int(state.counters[lane, core_kernel.CREDIT])
    state.counters[lane, core_kernel.CREDIT] = core_kernel.NO_LIMIT
    operation = KERNEL_START(state, lane)
    state.counters[lane, core_kernel.CREDIT] = credit
    return operation


def starts_only_two(state: Any, lane: int) -> int:
    if state.counters[lane, core_kernel.STARTS] == 2:
        return core_kernel.NOTHING
    return KERNEL_START(state, lane)


def never_returns_credit(state: Any, operation: int) -> None:
    state.counters[state.queue[operation], core_kernel.IN_FLIGHT] += state.size[operation]
    KERNEL_NOTIFY_FINISH(state, operation)


KERNEL_START, KERNEL_NOTIFY_FINISH = core_kernel.start, core_kernel.notify_finish


@pytest.mark.parametrize(
    ("function", "mutant", "policy", "rule"),
    [
        ("start", forgets_the_window, "bytescheduler", "test_the_window_is_kept"),
        ("start", starts_only_two, "fifo", "test_everything_comes_home"),
        ("notify_finish", never_returns_credit, "p3", "test_everything_comes_home"),
    ],
)
def test_a_wrong_kernel_is_noticed(
    monkeypatch: pytest.MonkeyPatch, function: str, mutant: Any, policy: str, rule: str
) -> None:
    monkeypatch.setattr(core_kernel, function, mutant)
    assert rule in broken_rules(policy, [rule])


def test_company_of_what_is_to_be_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bytelane.core.table.ALL_OF_IT", 1)
    rule = "test_everything_comes_home"
    (message,) = broken_rules(as_mutant(mutants.right_with_growing_units), [rule]).values()
    assert "was started beside the first" in message


def test_a_second_link_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, halves = "test_it_is_never_faster_than_the_optimum", as_mutant(mutants.right_in_halves)
    assert not broken_rules(halves, [rule])
    use_of = Cluster.use_of

    def gather_beside(self: Cluster, collective: Collective) -> LinkUse:
        return use_of(self, collective)._replace(direction=int(collective == "all-gather"))

    monkeypatch.setattr(Cluster, "use_of", gather_beside)
    assert rule in broken_rules(halves, [rule])


def test_a_lost_piece_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_one(*cut: Any) -> Pieces:
        return Pieces(*(column[:-1] for column in partition(*cut)))

    monkeypatch.setattr("bytelane.core.cutting.partition", lose_one)
    rule = "test_every_byte_is_sent_exactly_once"
    assert rule in broken_rules("fifo", [rule])


def test_engines_that_differ_by_a_tick_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    interpreted = sim_kernel.run

    def run(*arguments: Any) -> None:
        interpreted(*arguments)
        arguments[-1].iteration_start[0, -1] += 1

    monkeypatch.setattr(sim_kernel, "run", run)
    rule = "test_compiled_equals_interpreted"
    assert rule in broken_rules("fifo", [rule])


def records_backwards(policy: Policy, job: Job, pieces: Pieces, messages: Any, *more: Any) -> Plan:
    return PLAN_RECORD(policy, job, pieces, messages[::-1], *more)


def records_no_window(policy: Policy, *more: Any) -> Plan:
    return msgspec.structs.replace(PLAN_RECORD(policy, *more), window=CreditWindow())


PLAN_RECORD = Plan.record


@pytest.mark.parametrize("mutant", [records_backwards, records_no_window])
def test_a_plan_that_is_not_the_policy_is_noticed(
    monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    monkeypatch.setattr(Plan, "record", mutant)
    rule = "test_its_plan_replays_to_the_same_order"
    assert rule in broken_rules("p3", [rule])


# --- the suite itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_what_it_is_and_why_it_matters(rule: str) -> None:
    statement, _, why = (getattr(PolicyContract, rule).__doc__ or "").partition("\n\n")
    assert statement.strip().endswith(".")
    assert "\n" not in statement
    assert len(why.split()) > 10


def test_a_failure_teaches() -> None:
    (message,) = broken_rules(as_mutant(mutants.only_scatters)).values()
    assert message == (
        "policy 'mutant' breaks a rule: Its stages add up to one all-reduce, or to one push and "
        "one pull after it.\n"
        "  found: its stages are reduce-scatter; use all-reduce or reduce-scatter and all-gather, "
        "for job 'no tensors' (3 layers, 0 tensors), allreduce with 2 workers, its own knobs\n"
        "  why it matters: Half a synchronisation looks like a fast one. A reduce-scatter and an "
        "all-gather are one half of an all-reduce each; tensors pushed to a server have to be "
        "pulled."
    )


def test_a_name_that_nobody_has_registered_is_said() -> None:
    with pytest.raises(InputError, match="there is no policy 'bytescheduling'; did you mean"):
        broken_rules("bytescheduling")


def test_without_numba_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_contract, "find_spec", lambda name: None)
    contract = type("Contract", (PolicyContract,), {"policy": "fifo"})()
    with pytest.raises(pytest.skip.Exception, match="numba is not installed"):
        contract.test_compiled_equals_interpreted()


@pytest.mark.parametrize("package", ["hypothesis", "pytest"])
def test_a_missing_package_is_one_sentence_with_the_command(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None\nimport bytelane.testing"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "MissingExtra" in done.stderr
    assert "pip install 'bytelane[testing]'" in done.stderr
