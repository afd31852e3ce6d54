"""Attach hooks that mark a model's forward and backward pass; they can be removed again."""

import contextlib
import functools
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from bytelane.foreign.torch import tree_iter
from bytelane.measure.observation_points import ObservationPoints, when_complete
from bytelane.measure.record import Recorder

# The most autograd nodes that are searched for a module without a gradient of its own.
MOST_NODES = 200


class Observer:
    """Marks gates, gradients, and the end of calls without a gradient of their own."""

    def __init__(self, gates: ObservationPoints, recorder: Recorder) -> None:
        self._gates = gates
        self._recorder = recorder
        self._hooks = contextlib.ExitStack()
        self._first_call: dict[str, int] = {}
        self._open: list[tuple[int, set[Node]]] = []
        self._own: dict[str, set[str]] = {name: set() for name in gates.modules.values()}
        for parameter in gates.parameters:
            for user in gates.users[parameter]:
                self._own[user].add(parameter)

    def attach(self) -> None:
        """Begin to observe, between two iterations."""
        add = self._hooks.callback
        for root in self._gates.roots:
            add(root.register_forward_pre_hook(self._enter, prepend=True).remove)
            add(root.register_forward_hook(self._leave).remove)
        for module, name in self._gates.modules.items():
            gate = functools.partial(self._pass_gate, name)
            add(module.register_forward_pre_hook(gate, with_kwargs=True).remove)
            add(module.register_forward_hook(self._leave_gate).remove)
        for name, parameter in self._gates.parameters.items():
            add(when_complete(parameter, functools.partial(self._complete, name)).remove)

    def detach(self) -> None:
        self._hooks.close()

    def __enter__(self) -> "Observer":
        self.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        # Skip evaluation, and a forward pass that backward repeats (checkpointing).
        if torch.is_grad_enabled() and self._recorder.stage != "backward":
            self._recorder.mark("forward")

    def _pass_gate(self, name: str, module: torch.nn.Module, arguments: Any, keywords: Any) -> None:
        # Not is_grad_enabled(): checkpointing turns gradients off.
        if self._recorder.stage != "forward":
            return
        call = len(self._recorder.calls)
        self._recorder.mark("gate", call)
        self._recorder.calls.append(name)
        if call == 0:
            self._first_call.clear()
            self._open.clear()
        news = self._own[name].difference(self._first_call)
        self._first_call.update(dict.fromkeys(news, call))
        # With no gradient of its own, the operations that read its inputs tell when it is done.
        inputs = set() if news else _sources((arguments, keywords))
        self._open.append((call, inputs))

    def _leave_gate(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if self._recorder.stage == "forward":
            call, inputs = self._open.pop()
            if inputs:
                for node in _readers(_sources(output), inputs):
                    node.register_hook(functools.partial(self._done, call))

    def _leave(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if self._recorder.stage == "forward":
            self._recorder.mark("loss")
            done = functools.partial(self._done, len(self._recorder.calls))
            for value in _tensors(output):
                value.register_hook(done)  # type: ignore[no-untyped-call]

    def _done(self, call: int, *gradients: Any) -> None:
        if self._recorder.stage == "backward":
            self._recorder.mark("done", call)

    def _complete(self, name: str, parameter: torch.Tensor) -> None:
        if self._recorder.stage == "backward":
            self._recorder.mark("done", self._first_call.get(name, 0))
            self._recorder.gradients.add(name)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [v for v in tree_iter(values) if isinstance(v, torch.Tensor) and v.requires_grad]


def _sources(values: Any) -> set[Node]:
    """Return the autograd nodes that made these tensors."""
    return {get_gradient_edge(tensor).node for tensor in _tensors(values)}


def _readers(outputs: set[Node], inputs: set[Node]) -> list[Node]:
    """Return the autograd nodes between inputs and outputs that read the inputs directly."""
    found, waiting, seen = [], list(outputs - inputs), set(outputs)
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        before = {other for other, _ in node.next_functions if other is not None}
        if not before.isdisjoint(inputs):
            found.append(node)
        waiting += before - seen - inputs
        seen |= before
    return found
