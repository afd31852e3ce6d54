"""Test a policy of your own: the contract, and a property of this policy."""

import own_policy  # noqa: F401  (registers it)

import bytelane
from bytelane.testing import PolicyContract


class TestCarpool(PolicyContract):
    policy = "carpool"


def test_it_pays_where_messages_are_expensive() -> None:
    expensive = {"workers": 8, "bandwidth": "25Gbit", "overhead": "200us", "latency": "300us"}
    mine = bytelane.simulate("resnet50", policy="carpool", **expensive)
    theirs = bytelane.simulate("resnet50", policy="bytescheduler", **expensive)
    assert mine.iteration_s < theirs.iteration_s
