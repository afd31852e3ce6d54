"""Scheduling decisions: how tensors are cut into operations, and in which order these are sent.

Cutting: :class:`Parts`, :class:`Units`, :class:`Groups`; :class:`SubTask`, :class:`Pieces`.
Policies: :class:`Policy`, :class:`Knob`, :class:`Knobs`, :class:`CreditWindow`,
:func:`make_policy`, :func:`register`. Scheduler: :class:`Scheduler`, :class:`Start`,
:class:`Event`. Plans: :class:`Plan`, :class:`PlannedStage`, :class:`Operation`,
:class:`Lane`, :class:`Element`, :func:`require_plannable`. Interfaces for users:
:class:`Planner`, :class:`Tuner`. Tuning: :class:`Setting`, :class:`Space`,
:class:`Trial`.
"""

from bytelane.core import policies as _builtin_policies  # noqa: F401  (registers them)
from bytelane.core.cutting import Cutting, Groups, Parts, Units, partition
from bytelane.core.knobs import CreditWindow, Knobs
from bytelane.core.plan import (
    Element,
    Lane,
    LocalDecisions,
    Operation,
    Plan,
    PlannedStage,
    bucket_plan,
    in_halves,
    require_lanes,
    require_plannable,
)
from bytelane.core.policy import (
    Policy,
    Stage,
    choose_knobs,
    find_knob,
    make_policy,
    policies_for,
    policy_entry,
    policy_names,
    register,
    require_knob,
)
from bytelane.core.protocols import (
    Observation,
    PlannedBy,
    Planner,
    TransferTime,
    Tuner,
    Wish,
)
from bytelane.core.scheduler import Event, Scheduler, Start
from bytelane.core.setting import Context, Setting, Space, Trial
from bytelane.core.task import Pieces, SubTask, label
from bytelane.knob import Knob

__all__ = [
    "Context",
    "CreditWindow",
    "Cutting",
    "Element",
    "Event",
    "Groups",
    "Knob",
    "Knobs",
    "Lane",
    "LocalDecisions",
    "Observation",
    "Operation",
    "Parts",
    "Pieces",
    "Plan",
    "PlannedBy",
    "PlannedStage",
    "Planner",
    "Policy",
    "Scheduler",
    "Setting",
    "Space",
    "Stage",
    "Start",
    "SubTask",
    "TransferTime",
    "Trial",
    "Tuner",
    "Units",
    "Wish",
    "bucket_plan",
    "choose_knobs",
    "find_knob",
    "in_halves",
    "label",
    "make_policy",
    "partition",
    "policies_for",
    "policy_entry",
    "policy_names",
    "register",
    "require_knob",
    "require_lanes",
    "require_plannable",
]
