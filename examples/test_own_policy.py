"""How to test a policy of one's own: the contract, and what is special about this one."""

import own_policy  # noqa: F401  (registers it)

import bytelane
from bytelane.testing import PolicyContract


class TestCarpool(PolicyContract):
    policy = "carpool"


def test_it_pays_where_messages_are_dear() -> None:
    dear = {"workers": 8, "bandwidth": "25Gbit", "overhead": "200us", "latency": "300us"}
    mine = bytelane.simulate("resnet50", policy="carpool", **dear)
    theirs = bytelane.simulate("resnet50", policy="bytescheduler", **dear)
    assert mine.iteration_s < theirs.iteration_s
