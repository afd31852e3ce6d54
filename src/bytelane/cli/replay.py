"""``bytelane replay``: feed a recorded run to the scheduler again, and compare its decisions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bytelane.cli.options import Json
from bytelane.cli.output import print_json, print_table
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.trace.recording import Replayed


def replay(
    recording: Annotated[
        Path, typer.Argument(help="Trace file that prepare(trace=...) has written.")
    ],
    as_json: Json = False,
) -> None:
    """Feed every event of a recorded run to the scheduler again, and compare what it launches.

    A difference means that the run deviated from the core's decisions; the exit code is then 1.

    Example: bytelane replay out/rank0.jsonl
    """
    from bytelane.trace.recording import replay as step_through

    rounds = list(step_through(recording))
    odd = [found for found in rounds if found.difference]
    if as_json:
        print_json({"rounds": len(rounds), "differences": [_row(found) for found in odd]})
    else:
        _print_text(rounds, odd)
    raise typer.Exit(1 if odd else 0)


def _row(found: "Replayed") -> dict[str, object]:
    return {
        "step": found.line.step,
        "round": found.line.number,
        "plan_version": found.plan.plan.version,
        "difference": found.difference,
    }


def _print_text(rounds: "list[Replayed]", odd: "list[Replayed]") -> None:
    by_plan: dict[int, list[Replayed]] = {}
    for found in rounds:
        by_plan.setdefault(found.plan.plan.version, []).append(found)
    table = []
    for version, group in by_plan.items():
        plan = group[0].plan.plan
        middle_s = sorted(found.seconds for found in group)[len(group) // 2]
        operations = str(len(plan.operations))
        table.append(
            [str(version), plan.policy, operations, str(len(group)), f"{1000 * middle_s:.4g} ms"]
        )
    print_table(["plan", "policy", "operations", "rounds", "median round"], table)
    for found in odd[:5]:
        where = f"step {found.line.step}, round {found.line.number}"
        show(f"{where}: {one_line(found.difference)}")
    if not odd:
        show(f"\n{len(rounds)} rounds, all as the core decides")
    else:
        show(f"\n{len(odd)} of {len(rounds)} rounds differ from what the core decides")
