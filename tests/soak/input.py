"""Run thousands of random command lines: ``python tests/soak/input.py --runs 10000``.

With ``--shard K --of N`` this is one of N parts that can run at the same time; the same ``--seed``
makes the same runs. Verbs that start processes are a part of the runs, given in per cent.
"""

import argparse
import collections
import collections.abc
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import fuzz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="of all shards together")
    parser.add_argument("--shard", type=int, default=0, help="0 to N - 1")
    parser.add_argument("--of", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=float, default=4.0, help="per cent of the runs")
    given_ = parser.parse_args()
    runs = given_.runs // given_.of
    apart = round(runs * given_.processes / 100)
    number = given_.seed * 1_000_003 + given_.shard
    began = time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        fuzz.furnish(Path(folder))
        _run(fuzz.OFTEN + fuzz.IN_PROCESS, fuzz.run_here, runs - apart, number, counts, wrong)
        _run(fuzz.REAL, fuzz.run_apart, apart, number, counts, wrong)
        os.chdir("/")
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    took_s = time.monotonic() - began
    print(f"{counts.total()} runs in {took_s:.0f} s, seed {number}; wrong: {len(wrong)}")
    sys.exit(1 if wrong else 0)


def _run(
    verbs: tuple[str, ...],
    run: "collections.abc.Callable[[fuzz.Case], fuzz.Ended]",
    runs: int,
    number: int,
    counts: "collections.Counter[str]",
    wrong: list[str],
) -> None:
    if not runs:
        return

    @seed(number)
    @settings(
        max_examples=runs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(fuzz.cases(verbs))
    def every_case(case: fuzz.Case) -> None:
        try:
            ended = run(case)
            found = fuzz.complaint(case, ended)
        except (Exception, fuzz.TooLong) as error:
            traceback.print_exc()
            found, ended = repr(error), fuzz.Ended("-", "", "", 0.0)
        if found:
            wrong.append(found)
            print(f"{found}: {case}\n{ended.err[-1000:]}", flush=True)
        counts[f"{case.verb}: exit code {ended.code}"] += 1
        if counts.total() % 100 == 0:
            print(f"{counts.total()} runs, wrong: {len(wrong)}", flush=True)

    every_case()


if __name__ == "__main__":
    main()
