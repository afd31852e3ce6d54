"""Network models of the simulator: how long messages take, behind one interface.

The loop (:mod:`bytelane.sim.kernel`) knows when computing ends and what the scheduler starts. A
network knows when a message arrives. It is a module of plain functions on arrays, and its text is
compiled into one file with the loop, the log and the core's kernel (:mod:`bytelane.sim.assembly`),
so the loop calls it at no cost. Another network takes the place of the serial link by having the
same names:

``Network``
    A NamedTuple of arrays and numbers that never change: rates, routes, costs in ticks.
``Flights``
    A NamedTuple of arrays that change: the messages under way.
``advance(network, flights, clock)``
    Bring the network to this instant, through all that happens inside it until then: flows of
    other traffic begin and end, rates change. Called once at every instant, before anything else.
``arrived(network, flights, state, clock, queue) -> int``
    Take out the next operation of this queue whose end is known by now, or return ``NOTHING``.
    Queues are asked in turn, each until it has nothing more.
``transmit(network, flights, state, log, clock, queue, message, count)``
    Send a message: the operations ``message[:count]``, which travel together. Record each of them
    with ``record_transfer`` if the log keeps any (``log.launched.shape[0]``), now or on arrival,
    whenever its moments are known.
``next_arrival(network, flights) -> int``
    The next instant at which the loop has to look: no later than the next arrival; ``NEVER`` if no
    message of the training is under way. Other traffic never keeps the simulation going.

Instants are whole ticks and never go back. At an instant the loop calls ``advance``, ``arrived``
for every queue, lets workers compute, and calls ``transmit`` for all that the scheduler starts. A
message may arrive at the instant at which it was sent, and is then delivered at a second look.
Names of a network's own helpers must differ from those of the loop, the log and the core; the
assembly refuses a clash. The rules of :mod:`bytelane.core.kernel` hold: no allocation, nothing that
numba's nopython mode does not understand.
"""
