"""Train what many seeds draw, on real processes, beside DDP; look for a difference.

python tests/soak/training.py [--seeds 1000] [--seed N] [--ranks 2]

On 2 ranks the weights must be DDP's to the last bit. On more they must be those of the same plan
with a barrier, and the same on all ranks.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from random_models import how_to_repeat, judge
from ranks import Pool, RankFailed


def complaints(pool: Pool, seed: int) -> list[str]:
    try:
        found = pool.run(judge, seed=seed)
    except RankFailed as error:
        return [str(error)]
    return [f"rank {rank}: {text}" for rank, told in enumerate(found) for text in told]


def soak(seeds: list[int], ranks: int) -> int:
    """Return 1 if any seed fails."""
    failed, began = [], time.monotonic()
    with Pool(ranks) as pool:
        for number, seed in enumerate(seeds, 1):
            if told := complaints(pool, seed):
                failed.append(seed)
                print(
                    "\n".join([f"seed {seed} fails", *told, how_to_repeat(seed, ranks)]), flush=True
                )
            if number % 100 == 0:
                passed_s = time.monotonic() - began
                print(f"{number} seeds, {passed_s:.0f} s, {len(failed)} failed", flush=True)
    print(f"failed: {failed}" if failed else f"{len(seeds)} seeds on {ranks} ranks: all well")
    return bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many, from 0 on")
    parser.add_argument("--seed", type=int, help="only this one; say what it is")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    if options.seed is None:
        return soak(list(range(options.seeds)), options.ranks)
    print(how_to_repeat(options.seed, options.ranks))
    return soak([options.seed], options.ranks)


if __name__ == "__main__":
    sys.exit(main())
