"""How well a lab keeps its word: link rates, priorities, and how long it takes to open and close.

python benchmarks/lab.py [--repeats 3] [--mode namespace]

Ring transfers on all links in both directions at once, as an all-reduce does it; each line is one
number of hosts and one rate, over all links and repeats. TCP can get 0.956 of a link.
"""

import argparse
import os
import platform
import sys
import time
from statistics import mean, median

from bytelane.lab import Lab
from bytelane.lab.check import GOODPUT, TOLERANCE

RATES = [
    (2, "100Mbit"),
    (2, "500Mbit"),
    (2, "1Gbit"),
    (2, "2Gbit"),
    (4, "100Mbit"),
    (4, "500Mbit"),
    (4, "1Gbit"),
    (4, "2Gbit"),
    (8, "100Mbit"),
    (8, "500Mbit"),
    (8, "1Gbit"),
]
PRIORITIES = [
    ("pfifo_fast", "200Mbit"),
    ("pfifo_fast", "1Gbit"),
    ("htb", "200Mbit"),
    ("htb", "1Gbit"),
]


def measure_rates(mode: str, repeats: int, seconds: float) -> bool:
    print(f"{'hosts':>5} {'asked':>9} {'ratio: mean':>12} {'least':>6} {'most':>6}  right")
    all_right = True
    for hosts, rate in RATES:
        with Lab(hosts, rate, mode=mode) as lab:  # type: ignore[arg-type]
            hops = [hop for _ in range(repeats) for hop in lab.check(seconds)]
        ratios = [hop.ratio for hop in hops]
        right = sum(hop.is_right for hop in hops)
        all_right &= right == len(hops)
        print(
            f"{hosts:5} {rate:>9} {mean(ratios):12.3f} {min(ratios):6.3f} {max(ratios):6.3f}  "
            f"{right} of {len(hops)}",
            flush=True,
        )
    goal = GOODPUT[mode]
    print(f"right: within {TOLERANCE:.0%} of {goal:.3f}, {goal * 0.94:.3f} to {goal * 1.06:.3f}\n")
    return all_right


def measure_priorities(repeats: int, seconds: float) -> bool:
    print(f"{'queue':<10} {'rate':>9}  {'where':<18} share of the high one, least of {repeats}")
    all_right = True
    for queue, rate in PRIORITIES:
        with Lab(3, rate, priority=queue) as lab:  # type: ignore[arg-type]
            found = [share for _ in range(repeats) for share in lab.check_priority(seconds)]
        for where in dict.fromkeys(share.where for share in found):
            least = min(share.ratio for share in found if share.where == where)
            all_right &= least >= 0.95
            print(f"{queue:<10} {rate:>9}  {where:<18} {least:.1%}", flush=True)
    return all_right


def measure_start(mode: str, repeats: int) -> None:
    print()
    for hosts in (2, 4, 8):
        opened, closed = [], []
        for _ in range(2 * repeats + 1):
            moments = [time.monotonic()]
            with Lab(hosts, "1Gbit", mode=mode):  # type: ignore[arg-type]
                moments.append(time.monotonic())
            opened.append(moments[1] - moments[0])
            closed.append(time.monotonic() - moments[1])
        print(
            f"{hosts} hosts: open in {median(opened) * 1e3:.0f} ms, "
            f"closed in {median(closed) * 1e3:.0f} ms (medians of {len(opened)})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--mode", choices=["namespace", "pacing"], default="namespace")
    options = parser.parse_args()
    right = measure_rates(options.mode, options.repeats, options.seconds)
    if options.mode == "namespace":
        right &= measure_priorities(options.repeats, options.seconds)
    measure_start(options.mode, options.repeats)
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    print(f"{platform.platform()}, Python {platform.python_version()}, load {load}")
    return not right


if __name__ == "__main__":
    sys.exit(main())
