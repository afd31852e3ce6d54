"""The serial link model: messages are sent one after the other, and handled one after the other.

Each host has one link, or one per direction. A message occupies it for its overhead and its bytes,
is handled for the floor meanwhile, and its end is known a latency later. At most ``at_once``
messages are under way on a link. So all moments of a message are known when it is sent.

See :mod:`bytelane.sim.network` for the functions that a network has.
"""

from typing import NamedTuple

from bytelane.core.kernel import NOTHING, Ints, State
from bytelane.sim.log import NEVER, Log, record_transfer


class Network(NamedTuple):
    """The links' costs in ticks."""

    send_ticks: Ints
    """Operation -> the time it occupies its link."""
    overhead_ticks: Ints
    """Queue -> how much of that an operation saves by travelling in another one's message."""
    floor_ticks: Ints
    """Queue -> how long it takes to handle a message, while bytes of another may be sent."""
    link: Ints
    """Queue -> the link it uses."""
    latency_ticks: int
    at_once: int
    """Messages that may be under way on a link."""


class Flights(NamedTuple):
    """The messages under way."""

    link_free: Ints
    handler_free: Ints
    """Link -> when the last of its messages has been handled."""
    over_at: Ints
    """Link -> when the last of its messages are over, as many as may be under way at once."""
    flying: Ints
    known_at: Ints
    """A ring buffer per queue: operations in the order in which they went on the link."""
    oldest: Ints
    newest: Ints
    flights: Ints
    """Queue -> the place of the first operation in its ring, the place behind the last, the count.
    """


def advance(network: Network, flights: Flights, clock: int) -> None:
    """Do nothing: all moments of a message are known when it is sent."""


def next_arrival(network: Network, flights: Flights) -> int:
    """Return when the first of the messages under way is known to be over."""
    earliest = NEVER
    for queue in range(flights.flights.size):
        if flights.flights[queue] > 0:
            earliest = min(earliest, flights.known_at[flights.oldest[queue]])
    return earliest


def arrived(network: Network, flights: Flights, state: State, clock: int, queue: int) -> int:
    """Take out the next operation of a queue whose end is known by now, or return NOTHING."""
    place = flights.oldest[queue]
    if flights.flights[queue] == 0 or flights.known_at[place] > clock:
        return NOTHING
    flights.oldest[queue] = _behind(state, queue, place)
    flights.flights[queue] -= 1
    return int(flights.flying[place])


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
    """Put a message on its link, behind the messages that are already there."""
    link = network.link[queue]
    length = network.send_ticks[message[0]]
    for i in range(1, count):
        length += network.send_ticks[message[i]] - network.overhead_ticks[queue]
    ready = max(clock, flights.over_at[link, 0])
    handling, sending = max(ready, flights.handler_free[link]), max(ready, flights.link_free[link])
    handled, sent = handling + network.floor_ticks[queue], sending + length
    flights.handler_free[link] = handled
    flights.link_free[link] = sent
    _remember_end(flights.over_at, link, max(handled, sent))
    known = max(handled, sent) + network.latency_ticks
    flights.flights[queue] += count
    for i in range(count):
        place = flights.newest[queue]
        flights.flying[place] = message[i]
        flights.known_at[place] = known
        flights.newest[queue] = _behind(state, queue, place)
        if log.launched.shape[0] > 0:
            record_transfer(log, message[i], clock, handling, handled, sending, sent, known)


def _behind(state: State, queue: int, place: int) -> int:
    """Return the next place in a queue's ring."""
    return int(place + 1 if place + 1 < state.queue_from[queue + 1] else state.queue_from[queue])


def _remember_end(over_at: Ints, link: int, over: int) -> None:
    """Drop the oldest of a link's remembered ends, which nothing waits for any more; add one."""
    last = over_at.shape[1] - 1
    for place in range(last):
        over_at[link, place] = over_at[link, place + 1]
    over_at[link, last] = over
