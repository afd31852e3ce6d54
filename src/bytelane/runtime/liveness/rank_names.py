"""Name ranks in a sentence: ``ranks 1, 2 and 3``."""

from collections.abc import Sequence

MOST_NAMES = 4


def name_ranks(ranks: Sequence[int]) -> str:
    """Name one or more ranks, but not hundreds."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    names = [str(rank) for rank in ranks[:MOST_NAMES]]
    if len(ranks) > MOST_NAMES:
        return f"ranks {', '.join(names)} and {len(ranks) - MOST_NAMES} more"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
