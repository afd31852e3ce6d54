"""Kill, freeze and fail ranks at random moments: nobody may hang, or lie about its weights.

python tests/soak/faults.py [--count 300] [--seed 1]
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from test_faults import require_sound

from faults import MOMENTS_IN_A_STEP, expected_weights, run_fault

FAULTS = ("kill", "freeze", "raise in forward", "raise in the optimizer", "leave")
STEPS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    choose = random.Random(wanted.seed)
    expected = expected_weights(STEPS + 4)
    seconds: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    for number in range(wanted.count):
        fault = choose.choice(FAULTS)
        in_optimizer = fault == "raise in the optimizer"
        moment = choose.randint(1, STEPS if in_optimizer else STEPS * MOMENTS_IN_A_STEP)
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_fault(fault, moment, Path(folder))
        try:
            require_sound(outcome, expected)
        except AssertionError as error:
            sys.exit(f"number {number}, {fault} at moment {moment}: {error}\n{outcome}")
        seconds[fault] += [report.at_s - outcome.hurt_at_s for report in outcome.survivors]
        print(f"\r{number + 1} of {wanted.count}", end="", flush=True)
    print()
    for fault, found in seconds.items():
        if found:
            print(
                f"{fault:<24} {len(found):>4} times, noticed after {median(found):.2f} s "
                f"(longest {max(found):.2f} s)"
            )


if __name__ == "__main__":
    main()
