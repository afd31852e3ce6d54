"""Training and profiling find the same modules for every parameter."""

import pytest
import torch

from bytelane.measure.observation_points import find_gates, look_at
from bytelane.runtime.torch.parameters import TrainedParameters
from training import MODELS


class Held(torch.nn.Module):
    """Parameters in a list and in a dictionary, beside one of its own and a nested holder."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(4))
        self.scales = torch.nn.ParameterList([torch.ones(4), torch.ones(4)])
        self.layers = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4)})
        self.inner = torch.nn.ModuleList([torch.nn.ParameterList([torch.ones(4)])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers["a"](x) * self.scales[0] + self.scales[1] + self.bias
        return result * self.inner[0][0]


class Shared(torch.nn.Module):
    """One layer under two names, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.again = self.first
        self.tied = torch.nn.Linear(4, 4)
        self.tied.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.tied(self.again(self.first(x)))
        return result


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Held(), (2, 4)),
        (Shared(), (2, 4)),
        (MODELS["chain"](), (2, 24)),
        (MODELS["tied"](), (2, 24)),
        (MODELS["batch norm"](), (2, 24)),
        (torch.nn.Linear(4, 4), (2, 4)),
    ],
    ids=["held", "shared", "chain", "tied", "batch norm", "one layer"],
)
def test_both_have_one_map(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    with look_at(model) as seen:
        model(torch.ones(shape)).sum().backward()
    trained = TrainedParameters(model, [torch.optim.SGD(model.parameters(), lr=1.0)])
    profiled = find_gates(model, seen).users
    assert {name: set(used) for name, used in profiled.items()} == {
        name: set(owners) for name, owners in zip(trained.names, trained.owners, strict=True)
    }


def test_a_module_that_is_read_by_its_owner_is_its_owners() -> None:
    attention = torch.nn.MultiheadAttention(4, 2)
    with look_at(attention) as seen:
        attention(*[torch.ones(3, 1, 4)] * 3)[0].sum().backward()
    assert find_gates(attention, seen).users["out_proj.weight"] == {"(model)"}
