"""Lay out a cluster's links for the serial network: each operation's costs, in ticks."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bytelane.cluster import Cluster
from bytelane.core import Plan, Policy
from bytelane.core.kernel import FUSION, Ints, State
from bytelane.sim.log import Log
from bytelane.sim.network.serial import Flights, Network

Floats = npt.NDArray[np.float64]


class LinkTimes(NamedTuple):
    """The costs of operations on the links, in seconds."""

    send_s: Floats
    """Operation -> how long it occupies its link."""
    busy_s: Floats
    """Operation -> how long it occupies its link or its handler at most."""
    overhead_s: list[float]
    floor_s: list[float]
    """Queue -> per message."""
    latency_s: float
    link: Ints
    at_once: int


def link_times(cluster: Cluster, schedule: Policy | Plan, state: State) -> LinkTimes:
    """Return the costs of a schedule's operations on the links of a cluster."""
    copies = state.counters.shape[0] // len(schedule.stages)
    # With a parameter server every worker has links of its own: one each way, or one for both.
    uses = [cluster.use_of(stage.collective) for stage in schedule.stages for _ in range(copies)]
    overhead_s = cluster.link.overhead_s if cluster.wire_factor else 0.0
    floor_s = cluster.link.floor_s if cluster.wire_factor else 0.0
    size = state.size[: state.queue_from[1]]  # the same in every queue
    send_s = np.concatenate([use.share * overhead_s + size * use.byte_s for use in uses])
    return LinkTimes(
        send_s=send_s,
        busy_s=np.maximum(send_s, floor_s),
        overhead_s=[use.share * overhead_s for use in uses],
        floor_s=[use.share * floor_s for use in uses],
        latency_s=cluster.link.latency_s,
        link=np.array([use.direction * copies + row % copies for row, use in enumerate(uses)]),
        at_once=cluster.link.at_once,
    )


def make_network(times: LinkTimes, ticks_per_s: float) -> Network:
    """Turn seconds into whole ticks."""
    send_ticks = times.send_s * ticks_per_s
    return Network(
        send_ticks=np.rint(send_ticks, out=send_ticks).astype(np.int64),
        overhead_ticks=np.array([round(one * ticks_per_s) for one in times.overhead_s]),
        floor_ticks=np.array([round(one * ticks_per_s) for one in times.floor_s]),
        link=times.link,
        latency_ticks=round(times.latency_s * ticks_per_s),
        at_once=times.at_once,
    )


def make_flights(network: Network, state: State) -> Flights:
    """Return the state at time zero: nothing is under way."""
    links = max(network.link.tolist()) + 1
    flying, known_at = np.zeros((2, state.size.size), dtype=np.int64)
    return Flights(
        link_free=np.zeros(links, dtype=np.int64),
        handler_free=np.zeros(links, dtype=np.int64),
        over_at=np.zeros((links, network.at_once), dtype=np.int64),
        flying=flying,
        known_at=known_at,
        oldest=state.queue_from[:-1].copy(),
        newest=state.queue_from[:-1].copy(),
        flights=np.zeros(network.link.size, dtype=np.int64),
    )


def busiest_link_ticks(network: Network, state: State, log: Log) -> float:
    """Return how long messages occupy the busiest link per iteration, whenever they are sent.

    That is the longer of sending them one after the other and handling them one after the other.
    Where operations may be fused, the log tells which ones were.
    """
    links = network.link[state.queue]
    sending, handling = np.zeros((2, max(network.link.tolist()) + 1), dtype=np.int64)
    iterations = 1
    if not state.counters[:, FUSION].any():
        np.add.at(sending, links, network.send_ticks)
        np.add.at(handling, links, network.floor_ticks[state.queue])
    else:
        iterations = len(log.sent)
        for moments in zip(log.sending, log.sent, log.handling, log.handled, strict=True):
            columns = (column.tolist() for column in (links, *moments))
            # Operations of one message are on the link at the same time, and count once.
            for link, began, sent, held, let_go in set(zip(*columns, strict=True)):
                sending[link] += sent - began
                handling[link] += let_go - held
    # In whole numbers: ticks may be too many for a float to count.
    busiest: int = max(*sending.tolist(), *handling.tolist())
    return busiest / iterations
