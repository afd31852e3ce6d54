"""A network without rates: every message arrives after the same delay, whatever else is sent."""

from typing import NamedTuple

from bytelane.core.kernel import NOTHING, Ints, State
from bytelane.sim.log import NEVER, Log, record_transfer


class Network(NamedTuple):
    delay_ticks: int


class Flights(NamedTuple):
    due: Ints
    """Operation -> when it arrives; NEVER if it is not under way."""
    looked_at: Ints
    """The instants to which the network was brought, counted."""


def advance(network: Network, flights: Flights, clock: int) -> None:
    flights.looked_at[0] += 1


def next_arrival(network: Network, flights: Flights) -> int:
    earliest = NEVER
    for operation in range(flights.due.size):
        earliest = min(earliest, flights.due[operation])
    return earliest


def arrived(network: Network, flights: Flights, state: State, clock: int, queue: int) -> int:
    for operation in range(state.queue_from[queue], state.queue_from[queue + 1]):
        if flights.due[operation] <= clock:
            flights.due[operation] = NEVER
            return operation
    return NOTHING


def transmit(
    network: Network,
    flights: Flights,
    state: State,
    log: Log,
    clock: int,
    queue: int,
    message: Ints,
    count: int,
) -> None:
    due = clock + network.delay_ticks
    for i in range(count):
        flights.due[message[i]] = due
        if log.launched.shape[0] > 0:
            record_transfer(log, message[i], clock, clock, clock, clock, due, due)
