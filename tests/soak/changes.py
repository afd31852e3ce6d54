"""Change the plan a thousand times during one run, at random, and compare with DDP.

python tests/soak/changes.py [--changes 1000] [--seed 1]
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from test_live_changes import changing

import ranks

ASKED_EVERY = 2
# A wish is granted a step later, and one that comes before that counts as the same.
STEPS_A_CHANGE = 3.5
LONGEST_S = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    steps = int(STEPS_A_CHANGE * wanted.changes)
    ranks.TIMEOUT_S = LONGEST_S
    print(f"{steps} steps, then the same under DDP", flush=True)
    began = time.monotonic()
    with ranks.Pool(2) as pool:
        found = pool.run(changing, seed=wanted.seed, steps=steps, every=ASKED_EVERY)
    versions = {version for _, _, version in found}
    if not all(same for same, _, _ in found) or len(versions) != 1:
        sys.exit(f"weights equal DDP's: {[same for same, _, _ in found]}; plans: {versions}")
    plans = versions.pop()
    if plans < wanted.changes:
        sys.exit(f"only {plans} plans; nothing was lost, but ask for more")
    print(f"{plans} plans in {time.monotonic() - began:.0f} s, weights equal to the last bit")


if __name__ == "__main__":
    main()
