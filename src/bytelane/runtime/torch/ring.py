"""Ring reduce-scatter and all-gather over tagged point-to-point transfers of gloo.

Sums travel round the ring to one owner per chunk, and from the owners to all ranks. Gloo's own
reduce-scatter moves as much as an all-reduce, and its all-to-all is slower than this ring, which
comes within a few per cent of the link's rate.

In every step rank r sends a chunk to r + 1 and receives the one before it from r - 1::

    reduce-scatter, step s:  chunk r - s goes out, chunk r - s - 1 comes in and is added
    all-gather, step s:      chunk r + 1 - s goes out, chunk r - s comes in and replaces

Every sum is made once, so all ranks hold the same bits; on two ranks it is a + b, as in DDP.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist

# For more elements torch would wake up threads of its own, which take CPU time from training.
BLOCK = 2**15

Chunk = Sequence[torch.Tensor]
"""Views that hold it, end to end: of several tensors if they are small."""


class Place(NamedTuple):
    """Elements of one tensor in a row of them."""

    which: int
    start: int
    stop: int


def cut(lengths: Sequence[int], world: int, most: int) -> list[list[list[Place]]]:
    """Cut a row of tensors into slices, and each slice into one chunk per rank.

    No chunk has more elements than ``most``, and no two differ by more than one.
    """
    begins = [0, *accumulate(lengths)]
    count = world * max(1, -(-begins[-1] // (world * most)))
    bounds = [k * begins[-1] // count for k in range(count + 1)]
    chunks = [_places(begins, *pair) for pair in pairwise(bounds)]
    return [chunks[k : k + world] for k in range(0, count, world)]


def _places(begins: Sequence[int], start: int, stop: int) -> list[Place]:
    found = []
    for which, (begin, end) in enumerate(pairwise(begins)):
        first, last = max(start, begin), min(stop, end)
        if first < last:
            found.append(Place(which, first - begin, last - begin))
    return found


class Ring:
    """This rank's two neighbours in a process group. Transfers are matched by their tags."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank, self._world = group.rank(), group.size()

    def reduce_scatter(self, chunks: Sequence[Chunk], first_tag: int) -> None:
        """Wait until chunk rank + 1 holds the sum over all ranks; the others hold partial sums."""
        for ours, theirs in self._exchange(chunks, self._rank, first_tag):
            for mine, other in _in_blocks(ours, theirs):
                mine.add_(other)

    def all_gather(self, chunks: Sequence[Chunk], first_tag: int) -> None:
        """Wait until every chunk holds its sum, received from its owner."""
        for ours, theirs in self._exchange(chunks, self._rank + 1, first_tag):
            for mine, other in _in_blocks(ours, theirs):
                mine.copy_(other)

    def _exchange(
        self, chunks: Sequence[Chunk], first: int, first_tag: int
    ) -> Iterator[tuple[Chunk, torch.Tensor]]:
        """Send a chunk and those before it, each after its received data was summed or copied."""
        before, after = (self._rank - 1) % self._world, (self._rank + 1) % self._world
        sent = []
        for step in range(self._world - 1):
            out, into = (chunks[(first - step - k) % self._world] for k in (0, 1))
            if out:
                sent.append(self._group.send([_joined(out)], after, first_tag + step))
            if into:
                arriving = _room_for(into)
                self._group.recv([arriving], before, first_tag + step).wait()
                yield into, arriving
        for work in sent:
            work.wait()


def _room_for(chunk: Chunk) -> torch.Tensor:
    return chunk[0].new_empty(sum(view.numel() for view in chunk))


def _joined(chunk: Chunk) -> torch.Tensor:
    if len(chunk) == 1:
        return chunk[0]
    row = _room_for(chunk)
    for view, place in _in_blocks(chunk, row):
        place.copy_(view)
    return row


def _in_blocks(chunk: Chunk, row: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pair the views of a chunk with their places in a row, a block at a time."""
    places = torch.split(row, [view.numel() for view in chunk])
    for view, place in zip(chunk, places, strict=True):
        yield from zip(torch.split(view, BLOCK), torch.split(place, BLOCK), strict=True)
