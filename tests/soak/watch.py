"""Kill, freeze, delay and end ranks at random; look for what is noticed late or wrongly.

python tests/soak/watch.py [--events 200] [--at-once 6] [--seed 1]

In every event a few ranks watch each other, with the limits that users have, and something happens
to one of them. Killed, frozen or failed: every other rank must name it, with the right error and
within 10 s, and nobody else. Slow, stopped for a moment, or gone in order: nobody may say anything.
Afterwards no sentinel may run.
"""

import argparse
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from bytelane.runtime.liveness.failure_detector import Limits
from watched import Rank, await_true, ranks

LATE_S = 10.0
# What happens, and the error that the others must get.
FAULTS = {"kill": "PeerLost", "freeze": "PeerFrozen", "fail": "PeerFailed"}
HARMLESS = ("stop", "hold", "leave")


class Event(NamedTuple):
    """One thing that happens to one rank."""

    what: str
    world: int
    victim: int
    after_s: float


class Outcome(NamedTuple):
    """How long it took until each other rank knew, and what was wrong."""

    event: Event
    noticed_s: list[float]
    wrong: list[str]


def draw(chance: random.Random) -> Event:
    world = chance.randint(2, 5)
    what = chance.choice([*FAULTS, *FAULTS, *HARMLESS])
    return Event(what, world, chance.randrange(world), chance.uniform(0.0, 2.0))


def do(event: Event, victim: Rank) -> float:
    """Let it happen; return when that was."""
    now_s = time.monotonic()
    match event.what:
        case "kill":
            victim.signal(signal.SIGKILL)
        case "freeze":
            victim.signal(signal.SIGSTOP)
        case "fail":
            victim.tell("fail", "on purpose")
        case "stop":
            victim.signal(signal.SIGSTOP)
            time.sleep(3.0)
            victim.signal(signal.SIGCONT)
        case "hold":
            victim.tell("hold", "asleep")
            victim.expect("done hold")
        case "leave":
            victim.tell("close")
    return now_s


def run(event: Event) -> Outcome:
    with ranks(event.world, Limits()) as all_of_us:
        victim = all_of_us[event.victim]
        others = [rank for rank in all_of_us if rank is not victim]
        time.sleep(event.after_s)
        began_s = do(event, victim)
        await_true(lambda: all(rank.losses() for rank in others), quiet_s(event))
        time.sleep(0.3)  # for whatever else may come
        wrong = [text for rank in others for text in rank.losses() if not is_right(event, text)]
        wrong += [text for rank in all_of_us for text in rank.lines("line ")]
        wrong += victim.losses()
        noticed_s = [rank.when("loss ") - began_s for rank in others if rank.losses()]
    if event.what in FAULTS and len(noticed_s) < len(others):
        wrong.append(f"{len(others) - len(noticed_s)} ranks did not notice")
    return Outcome(event, noticed_s, wrong)


def quiet_s(event: Event) -> float:
    return 3 * LATE_S if event.what in FAULTS else 4.0


def is_right(event: Event, text: str) -> bool:
    return text.startswith(f"loss {FAULTS.get(event.what)} {event.victim} ")


def attempt(event: Event) -> Outcome:
    try:
        return run(event)
    except Exception as error:
        return Outcome(event, [], [repr(error)])


def describe(noticed_s: list[float]) -> str:
    if not noticed_s:
        return ""
    median_s, worst_s = statistics.median(noticed_s), max(noticed_s)
    return f"noticed after {median_s:.2f} s (median), {worst_s:.2f} s (worst)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    events = [draw(chance) for _ in range(options.events)]
    began, bad = time.monotonic(), 0
    happened, noticed = Counter[str](), defaultdict[str, list[float]](list)
    with ThreadPoolExecutor(options.at_once) as pool:
        for number, outcome in enumerate(pool.map(attempt, events), 1):
            late = [f"noticed after {s:.1f} s" for s in outcome.noticed_s if s > LATE_S]
            if complaints := outcome.wrong + late:
                bad += 1
                print(f"event {number}: {outcome.event}: {complaints}", flush=True)
            happened[outcome.event.what] += 1
            noticed[outcome.event.what] += outcome.noticed_s
            if number % 50 == 0:
                print(f"{number} events, {time.monotonic() - began:.0f} s, {bad} bad", flush=True)
    for what, times in sorted(happened.items()):
        print(f"{times:5} {what:7} {describe(noticed[what])}")
    print("nothing was noticed late or wrongly" if not bad else f"{bad} bad events")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
