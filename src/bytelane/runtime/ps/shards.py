"""Assign every byte of every tensor to a server, on a fixed grid of chunks.

How tensors are *sliced* on their way may change from round to round; which server owns a byte may
not, or servers would have to hand state to each other. So runs of whole chunks are assigned once,
and a slice that crosses the border between two runs is split there.
"""

from bisect import bisect_right
from collections.abc import Sequence

from bytelane.core import SubTask
from bytelane.errors import InputError
from bytelane.job.job import LARGEST_TENSOR
from bytelane.values import require_whole

CHUNK_BYTES = 65536
"""No run begins inside a chunk; a multiple of every element's size."""
MOST_SERVERS = 1024


class Shards:
    """Which server owns which bytes. Equal arguments give equal shards on every rank."""

    def __init__(
        self, runs: Sequence[SubTask], owners: Sequence[int], servers: int, lost: Sequence[int] = ()
    ) -> None:
        self.servers = servers
        """How many there are, the lost ones too: their numbers stay."""
        self.lost = frozenset(lost)
        self._runs = tuple(runs)
        """By tensor and start; together they cover every byte once."""
        self._owners = tuple(owners)
        self._stops = [(run.tensor, run.stop) for run in self._runs]

    @classmethod
    def spread(
        cls, tensor_bytes: Sequence[int], servers: int, partition_bytes: int | None = None
    ) -> "Shards":
        """Give runs of this size, the largest first, to the server that has least.

        None keeps tensors whole. In turn instead of to the least loaded, shards of VGG-16 would
        differ by more than half.
        """
        require_whole(servers, "servers", 1, MOST_SERVERS)
        runs = [
            run for t, size in enumerate(tensor_bytes) for run in _cut(t, size, partition_bytes)
        ]
        owners, load = [0] * len(runs), [0] * servers
        for number in sorted(range(len(runs)), key=lambda n: (-runs[n].bytes, n)):
            owners[number] = load.index(min(load))
            load[owners[number]] += runs[number].bytes
        return cls(runs, owners, servers)

    def owner(self, tensor: int, byte: int) -> int:
        """Return the server that owns this byte."""
        return self._owners[self._place(tensor, byte)]

    def runs_of(self, server: int) -> list[SubTask]:
        """Return the runs that a server owns, by tensor and start."""
        return [run for run, owner in zip(self._runs, self._owners, strict=True) if owner == server]

    def split(self, part: SubTask) -> list[tuple[int, SubTask]]:
        """Cut a part where the owner changes."""
        found: list[tuple[int, SubTask]] = []
        place, start = self._place(part.tensor, part.start), part.start
        while start < part.stop:
            owner, stop = self._owners[place], min(self._runs[place].stop, part.stop)
            if found and found[-1][0] == owner:
                start = found.pop()[1].start
            found.append((owner, SubTask(part.tensor, start, stop)))
            place, start = place + 1, stop
            if start < part.stop:
                self._require(part.tensor, start, place)
        return found

    def without(self, server: int) -> "Shards":
        """Give the runs of a lost server to the next living one in ring order; the others stay."""
        if server not in range(self.servers) or server in self.lost:
            raise InputError(f"server {server} cannot be lost: it is not there")
        lost = {*self.lost, server}
        ring = [(server + step) % self.servers for step in range(1, self.servers)]
        heir = next((number for number in ring if number not in lost), None)
        if heir is None:
            raise InputError("the last server is lost; nobody can take its shard over")
        owners = [heir if owner == server else owner for owner in self._owners]
        return Shards(self._runs, owners, self.servers, sorted(lost))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[object, ...]:
        return self._runs, self._owners, self.servers, self.lost

    def _place(self, tensor: int, byte: int) -> int:
        place = bisect_right(self._stops, (tensor, byte))
        self._require(tensor, byte, place)
        return place

    def _require(self, tensor: int, byte: int, place: int) -> None:
        run = self._runs[place] if place < len(self._runs) else None
        if run is None or run.tensor != tensor or not run.start <= byte < run.stop:
            raise InputError(f"there is no byte {byte} of tensor {tensor}")


def _cut(tensor: int, size: int, partition_bytes: int | None) -> list[SubTask]:
    if partition_bytes is None:
        return [SubTask(tensor, 0, size)]
    require_whole(partition_bytes, "partition_bytes", 1, LARGEST_TENSOR)
    step = -(-partition_bytes // CHUNK_BYTES) * CHUNK_BYTES
    return [SubTask(tensor, start, min(start + step, size)) for start in range(0, size, step)]
