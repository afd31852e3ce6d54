"""Train what many seeds draw, on real processes, beside DDP; look for a difference.

python tests/soak/training.py [--seeds 1000] [--seed N] [--ranks 2] [--contexts]

On 2 ranks the weights must be DDP's to the last bit. On more they must be those of the same plan
with a barrier, and the same on all ranks. Seeds draw models and habits of loops or, with
--contexts, what forward, backward and step are in (2 ranks).
"""

import argparse
import sys
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import contexts
import random_models
from ranks import Pool, RankFailed


def complaints(pool: Pool, drawn: ModuleType, seed: int) -> list[str]:
    try:
        found = pool.run(drawn.judge, seed=seed)
    except RankFailed as error:
        return [str(error)]
    return [f"rank {rank}: {text}" for rank, told in enumerate(found) for text in told]


def soak(drawn: ModuleType, seeds: list[int], ranks: int) -> int:
    """Return 1 if any seed fails."""
    failed, began = [], time.monotonic()
    with Pool(ranks) as pool:
        for number, seed in enumerate(seeds, 1):
            if told := complaints(pool, drawn, seed):
                failed.append(seed)
                again = drawn.how_to_repeat(seed, ranks)
                print("\n".join([f"seed {seed} fails", *told, again]), flush=True)
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
    parser.add_argument("--contexts", action="store_true", help="autocast, modes, transforms...")
    options = parser.parse_args()
    drawn = contexts if options.contexts else random_models
    if options.seed is None:
        return soak(drawn, list(range(options.seeds)), options.ranks)
    print(drawn.how_to_repeat(options.seed, options.ranks))
    return soak(drawn, [options.seed], options.ranks)


if __name__ == "__main__":
    sys.exit(main())
