"""Three layers of NumPy, trained through parameter servers by the synchroniser: no torch anywhere.

``python numpy_ps_training.py RANK WORLD STEPS POLICY ADDRESS...`` is a worker. It prints a digest
of its weights, how often updates were owed after a step, and if torch was loaded.
"""

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

from bytelane.cluster import Cluster, Link
from bytelane.core import Element, Knobs, Plan, Policy, make_policy, policy_entry
from bytelane.job import Job, Layer, Tensor
from bytelane.runtime.ps.address import parse_address
from bytelane.runtime.ps.connections import Connections, Member
from bytelane.runtime.ps.decisions import ServerDecisions
from bytelane.runtime.ps.shards import Shards
from bytelane.runtime.ps.slices import Slices
from bytelane.runtime.ps.transport import PsTransport, Served
from bytelane.runtime.sync import Engine, Rounds, Synchroniser, Transport, UnknownPeers
from numpy_training import SHAPES, Model, NumpyFramework, run

PART = 1000  # cuts elements in two, unless somebody cares
FLOATS = [Element("float32", 4)] * len(SHAPES)


def job() -> Job:
    sizes = [4 * rows * columns for rows, columns in SHAPES]
    layers = tuple(Layer(f"l{i}", 0.001, 0.002) for i in range(len(sizes)))
    tensors = tuple(Tensor(Model.names[i], size, (i,)) for i, size in enumerate(sizes))
    return Job("numpy", layers, tensors)


def policy_of(name: str, world: int, servers: int) -> Policy:
    cluster = Cluster.star(world, Link(1e9), servers=servers, colocated=False)
    has_parts = any(knob.name == "partition" for knob in policy_entry(name).knobs)
    return make_policy(name, job(), cluster, Knobs(PART, 2 * PART) if has_parts else None)


class Servers:
    """What a worker pushes and pulls, and how it decides."""

    def __init__(self, connections: Connections, policy: Policy) -> None:
        sizes = [tensor.bytes for tensor in job().tensors]
        shards = Shards.spread(sizes, len(connections.addresses))
        self._connections, self._policy = connections, policy
        self._slices = Slices.of(policy, job(), shards, FLOATS)

    def plan(self) -> Plan:
        return self._slices.plan(self._policy.name, self._policy.window)

    def carry(self, plan: Plan) -> Transport:
        pull, places = self._policy.stages[1], self._slices.pull_places(self._policy)
        served = Served(self._slices, plan.version, places, pull.window.credit_bytes)
        return PsTransport(self._connections, served)

    def make_engine(
        self, plan: Plan, transport: Transport, names: tuple[str, ...], **settings: Any
    ) -> Engine:
        decisions = ServerDecisions(self._policy, job(), self._slices)
        operations = self._slices.operations(self._policy, names)
        return Engine(decisions, operations, transport, **settings)


def main(rank: int, world: int, steps: int, policy: str, addresses: Sequence[str]) -> None:
    model, crossed, unknown = Model(), 0, UnknownPeers()
    there = [parse_address(address) for address in addresses]
    connections = Connections(there, Member("numpy", rank, world))
    connections.join(30.0)
    servers = Servers(connections, policy_of(policy, world, len(there)))
    rounds = Rounds(servers.carry, peers=unknown, timeout_s=30, make_engine=servers.make_engine)
    sync = Synchroniser(model, NumpyFramework(), rounds, plans=model, peers=unknown)
    sync.begin_with(servers.plan())
    for step in range(steps):
        run(model, rank, step, lambda layer: sync.settle([layer]), sync.take)
        owed = sync.defer({0, 1, 2})
        crossed += bool(owed)
        model.update([t for t in range(3) if t not in owed], lambda t: True)
        sync.count_step()
    sync.flush()
    connections.close()
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.weights)).hexdigest()
    print(digest, crossed, "torch" in sys.modules)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], sys.argv[5:])  # type: ignore[call-arg, arg-type]
