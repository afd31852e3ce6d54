"""The decisions: what is sent, in what pieces, in what order.

Cutting: :class:`SubTask`, :class:`Pieces`, :func:`partition`. Choosing: :class:`Policy`,
:class:`Knobs`, :class:`CreditWindow`, :func:`make_policy`, :func:`register`. Deciding:
:class:`Scheduler`, :class:`Start`, :class:`Event`. Writing it down: :class:`Plan`,
:class:`Operation`, :class:`Element`, :func:`require_plannable`. Handed in from outside:
:class:`Planner`, :class:`Tuner`, :class:`Transport`.
"""

from bytelane.core import policies as _builtin_policies  # noqa: F401  (registers them)
from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.plan import (
    Element,
    Operation,
    Plan,
    bucket_plan,
    require_lanes,
    require_plannable,
)
from bytelane.core.policy import (
    Policy,
    Stage,
    choose_knobs,
    make_policy,
    policies_for,
    policy_entry,
    policy_names,
    register,
)
from bytelane.core.protocols import Done, Planner, Review, Transport, Tuner, Wish
from bytelane.core.scheduler import Event, Scheduler, Start
from bytelane.core.task import Pieces, SubTask, label, partition

__all__ = [
    "CreditWindow",
    "Done",
    "Element",
    "Event",
    "Knobs",
    "Operation",
    "Pieces",
    "Plan",
    "Planner",
    "Policy",
    "Review",
    "Scheduler",
    "Stage",
    "Start",
    "SubTask",
    "Transport",
    "Tuner",
    "Wish",
    "bucket_plan",
    "choose_knobs",
    "label",
    "make_policy",
    "partition",
    "policies_for",
    "policy_entry",
    "policy_names",
    "register",
    "require_lanes",
    "require_plannable",
]
