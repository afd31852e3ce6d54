"""Synchronise tensors between ranks, without knowing the framework that trains them.

::

    a gradient is complete ─▶ Synchroniser ─▶ Rounds ─▶ Engine ─▶ Decider (core)
                                   │             │         │
         Exchange ◀────────────────┤             └─▶ Transport ◀─┘
         Framework ◀───────────────┘

Hooks call :class:`Synchroniser`. :class:`~.tensor_states.Tensors` holds the state of every tensor.
:class:`Rounds` has the plan in force. :class:`Engine` launches what a decider starts. The protocols
in ``protocols.py`` hide the differences between frameworks and ways to send.
"""

from bytelane.runtime.sync.engine import Decider, Engine
from bytelane.runtime.sync.operations import Operations
from bytelane.runtime.sync.peers import UnknownPeers
from bytelane.runtime.sync.protocols import (
    Contribution,
    Done,
    Exchange,
    Framework,
    KnowsPeers,
    Message,
    Plans,
    Transfer,
    Transport,
)
from bytelane.runtime.sync.rounds import Rounds
from bytelane.runtime.sync.synchroniser import Synchroniser
from bytelane.runtime.sync.tensor_states import Happening, State, Tensors

__all__ = [
    "Contribution",
    "Decider",
    "Done",
    "Engine",
    "Exchange",
    "Framework",
    "Happening",
    "KnowsPeers",
    "Message",
    "Operations",
    "Plans",
    "Rounds",
    "State",
    "Synchroniser",
    "Tensors",
    "Transfer",
    "Transport",
    "UnknownPeers",
]
