"""Hurt ranks from outside, at moments spread evenly over a run; look for silence and hanging.

python tests/soak/liveness.py [--events 500] [--seed 1] [--shard 1 --of 10] [--only 17] [--fault X]

Every run is a real training of 2, 4 or 8 ranks, under some policy, on one lane or two, started by
torchrun or without. Its length is measured first. Then one rank is killed, frozen, continued, made
to raise or to exit, or its sentinel is killed or stopped, at a moment between
``init_process_group`` and the end. Every other rank must say which rank that was, within 10 s, or
finish in order if nothing is lost; exit codes must be those of the script; nothing may be left.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hurting import Event, Zygote, draw, hurt, unhurt_s

# One in ten has 8 ranks; of the others, three in five have 2.
WORLDS = (8, 2, 4, 2, 4, 2, 4, 2, 2, 4)


class Soak:
    """Events one after the other, a few at once, and what was wrong with them."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._lengths_s: dict[tuple[object, ...], float] = {}
        self._lock = threading.Lock()

    def happen(self, event: Event) -> list[str]:
        try:
            with tempfile.TemporaryDirectory() as folder:
                return hurt(event, self._length_s(event), Path(folder), self._zygote)
        except Exception as error:
            return [f"the event itself failed: {error!r}"]

    def _length_s(self, event: Event) -> float:
        kind = (event.world, event.knobs, event.store == "torchrun")
        if kind not in self._lengths_s:
            with self._lock, tempfile.TemporaryDirectory() as folder:
                if kind not in self._lengths_s:
                    self._lengths_s[kind] = unhurt_s(event, Path(folder), self._zygote)
        return self._lengths_s[kind]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=500, help="of all shards together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", type=int, default=1, help="which part of them, from 1")
    parser.add_argument("--of", type=int, default=1, help="in how many parts")
    parser.add_argument("--only", type=int, nargs="+", help="only events of these numbers, from 0")
    parser.add_argument("--fault", nargs="+", help="only events with these faults")
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    drawn = [draw(chance, WORLDS[k % len(WORLDS)]) for k in range(options.events)]
    numbered = list(enumerate(drawn))[options.shard - 1 :: options.of]
    if options.only is not None:
        numbered = [(number, drawn[number]) for number in options.only]
    if options.fault is not None:
        numbered = [(number, event) for number, event in numbered if event.fault in options.fault]
    zygote, began_s, bad = Zygote(), time.monotonic(), 0
    soak = Soak(zygote)
    with ThreadPoolExecutor(options.at_once) as pool:
        outcomes = pool.map(lambda numbered: soak.happen(numbered[1]), numbered)
        for done, ((number, event), wrong) in enumerate(zip(numbered, outcomes, strict=True), 1):
            if wrong:
                bad += 1
                again = f"--events {options.events} --seed {options.seed} --only {number}"
                print(f"event {number}: {event}", *wrong, sep="\n  ")
                print(f"  python tests/soak/liveness.py {again}", flush=True)
            if done % 10 == 0:
                passed_s = time.monotonic() - began_s
                print(f"{done} of {len(numbered)}, {passed_s:.0f} s, {bad} bad", flush=True)
    zygote.close()
    for what, times in sorted(Counter(event.fault for _, event in numbered).items()):
        print(f"{times:5} {what}")
    print("nobody hung or ended in silence" if not bad else f"{bad} bad events")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
