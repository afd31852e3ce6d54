"""2000 simulations drawn at random, and what the simulator found when they were recorded.

A change of the simulator's structure must not change a bit of its results. Everything goes through
the public API, so the draws survive such a change.
``python tests/support/recorded_simulations.py --write`` records again: only when results are meant
to change, and the commit says why.
"""

import argparse
import hashlib
import sys
from pathlib import Path
from random import Random
from typing import Any

import bytelane
from bytelane.api import choose_knobs
from bytelane.core import policies_for
from bytelane.errors import InputError
from bytelane.job import Job, Layer, Tensor, zoo
from bytelane.trace import Trace

COUNT = 2000
RECORDED = Path(__file__).parent / "recorded_simulations.txt"

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"sync": "allreduce"},
    {"sync": "ps"},
    {"sync": "ps", "shared_link": True},
    {"sync": "ps", "separate": True, "servers": 1},
    {"sync": "ps", "separate": True, "servers": 3},
)
# Policies that are younger than the recording: drawing them would change all draws.
SINCE = ("random",)
UPDATE_S = (0.0, 1e-3)
SIZES = ("64KiB", "300000B", "1MiB", "4MiB", "32MiB")


def draw_job(chance: Random) -> Job:
    """Draw a small model of the zoo, or anything that a job may be."""
    if chance.random() < 0.15:
        return zoo.make(chance.choice(["alexnet", "resnet50", "vgg16", "gpt2"]))
    count = chance.randint(1, 12)
    layers = tuple(
        Layer(f"l{i}", chance.uniform(0, 0.02), chance.uniform(1e-5, 0.04), chance.choice(UPDATE_S))
        for i in range(count)
    )
    tensors = tuple(
        Tensor(
            f"t{i}",
            int(10 ** chance.uniform(0, 7.5)),
            tuple(sorted(chance.sample(range(count), min(count, chance.choice([1, 1, 1, 2, 3]))))),
        )
        for i in range(chance.randint(0, 2 * count))
    )
    return Job("any", layers, tensors, chance.choice([0.0, 0.0, 0.005]))


def draw_setting(chance: Random) -> dict[str, Any]:
    """Draw a cluster and a policy with some of its knobs."""
    layout = chance.choice(LAYOUTS)
    setting: dict[str, Any] = {
        **layout,
        "workers": chance.choice([1, 2, 3, 4, 8]),
        "bandwidth": chance.choice(["100Mbit", "1Gbit", "10Gbit", "25Gbit"]),
        "overhead": chance.choice(["0us", "0us", "20us", "300us"]),
        "latency": chance.choice(["0us", "50us", "1ms"]),
        "floor": chance.choice(["0us", "0us", "200us", "6ms"]),
        "slow": chance.choice([1.0, 1.0, 1.0, 1.5]),
        "policy": chance.choice([p for p in policies_for(layout["sync"]) if p not in SINCE]),
    }
    for knob in ("partition", "credit", "fusion"):
        if chance.random() < 0.5:
            setting[knob] = chance.choice(SIZES)
    if chance.random() < 0.15:
        setting["jitter"], setting["seed"] = 0.1, chance.randrange(100)
    if chance.random() < 0.1:
        setting["barrier"] = chance.random() < 0.5
    return setting


def found(number: int) -> str:
    """Simulate one draw; return its numbers to the last bit, or that it is refused."""
    chance = Random(number)
    job, setting = draw_job(chance), draw_setting(chance)
    for knob in ("partition", "credit", "fusion"):  # that this policy does not have
        try:
            choose_knobs(setting["policy"], **{knob: setting.get(knob)})
        except InputError:
            setting.pop(knob)
    try:
        result = bytelane.simulate(job, **setting)
    except InputError:
        return "refused"
    times = (result.iteration_s, result.spread_s, result.compute_s, result.communication_s)
    trace = _digest(result.trace) if result.log is not None else "optimum"
    return " ".join([*(time.hex() for time in times), trace])


def _digest(trace: Trace) -> str:
    spans = [(s.kind, s.start_s.hex(), s.end_s.hex(), s.iteration, s.bytes) for s in trace.spans]
    return hashlib.sha256(repr(spans).encode()).hexdigest()[:16]


def recorded() -> list[str]:
    """Return what was found then."""
    return RECORDED.read_text().splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="record what is found now")
    options = parser.parse_args()
    if options.write:
        RECORDED.write_text("".join(f"{found(number)}\n" for number in range(COUNT)))
        return 0
    changed = [number for number, line in enumerate(recorded()) if found(number) != line]
    print(f"{len(changed)} of {COUNT} have changed: {changed[:10]}")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
