"""Loops that users write around forward, backward and step."""

from typing import Any

import torch
from torch import nn

from cases.arms import CLASSES, FEATURES, Arm, Net
from cases.compare import Values, local
from cases.parts import STEPS, gradients, loss_of, prepared, state_of, train, weights
from cases.registry import case


@case("the usual loop", "exact", why="Zero, forward, backward, step.")
def usual(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    losses = []

    def loss_kept(net: Net, arm: Arm, step: int) -> torch.Tensor:
        loss = loss_of(net, arm, step)
        losses.append(loss.detach())
        return loss

    train(net, optimizer, arm, loss_of=loss_kept)
    return weights(model) | state_of(optimizer) | local(losses=torch.stack(losses))


# --- gradients: zeroed, kept, added up ------------------------------------------------------------


@case(
    "zero_grad: to None or in place, of the optimizer or the model, before or after",
    "exact",
    why="A gradient whose update is still under way is thrown away for the user only.",
    ways=("in place", "of the model", "of the model, in place", "after step"),
)
def zeroing(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)

    def zero() -> None:
        owner = model if "of the model" in way else optimizer
        owner.zero_grad(set_to_none="in place" not in way)

    for step in range(STEPS):
        if way != "after step":
            zero()
        loss_of(net, arm, step).backward()
        optimizer.step()
        if way == "after step":
            zero()
    return weights(model) | gradients(model)


@case(
    "zeroing by hand, with p.grad = None",
    "barrier",
    why="It may mean anything, so the update is made first.",
)
def zeroed_by_hand(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)

    def zero() -> None:
        for p in model.parameters():
            p.grad = None

    train(net, optimizer, arm, after_step=zero)
    return weights(model) | gradients(model)


@case(
    "no zero_grad at all",
    "exact",
    why="Gradients add up over the steps, as they do under DDP.",
)
def never_zeroed(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model) | gradients(model)


@case(
    "gradient accumulation",
    "exact",
    why="Every backward pass is summed over the ranks, as under DDP; `no_sync` saves that.",
)
def accumulation(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in (2, 1, 0):
            (loss_of(net, arm, step + 100 * part) / 3).backward()
        optimizer.step()
    return weights(model)


@case(
    "gradient accumulation with no_sync",
    "exact",
    why="`with bytelane.no_sync(model):` adds up on each rank; the next backward pass sums it all.",
)
def accumulation_without_sync(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    kept: Values = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(model):
            for part in (1, 2):
                (loss_of(net, arm, step + 100 * part) / 3).backward()
            if step == 4:
                kept = local(gradient=model[0].weight.grad.clone())
        (loss_of(net, arm, step) / 3).backward()
        optimizer.step()
    return weights(model) | kept


@case(
    "gradient accumulation with require_backward_grad_sync",
    "exact",
    why="`model.require_backward_grad_sync = False` works as it does with DDP.",
)
def accumulation_by_attribute(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in (2, 1, 0):
            net.require_backward_grad_sync = part == 0
            (loss_of(net, arm, step + 100 * part) / 3).backward()
        optimizer.step()
    return weights(model)


@case(
    "accumulation over an uneven number of passes",
    "exact",
    why="How many backward passes make a step may change from step to step.",
)
def uneven_accumulation(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(model):
            for part in range(step % 3):
                loss_of(net, arm, step + 100 * (part + 1)).backward()
        loss_of(net, arm, step).backward()
        optimizer.step()
    return weights(model)


@case(
    "a step with gradients that no_sync kept apart",
    "barrier",
    why="Ranks drift apart, as under DDP: nothing is summed that `no_sync` was to keep apart.",
    probed=False,
)
def step_without_sync(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, arm, step).backward()
        optimizer.step()
    before = weights(model)
    optimizer.zero_grad()
    with arm.no_sync(model):
        loss_of(net, arm, STEPS).backward()
    optimizer.step()
    return before | {f"on this rank: {name}": p for name, p in weights(model).items()}


# --- somebody looks at gradients ------------------------------------------------------------------


@case(
    "clipping by global norm",
    "barrier",
    why="The norm is of all summed gradients.",
)
def clipped_by_norm(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    norms = []

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))

    train(net, optimizer, arm, before_step=clip)
    return weights(model) | {"norms": torch.stack(norms)}


@case("clipping by value", "barrier", why="Every summed gradient is read and written.")
def clipped_by_value(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)

    def clip() -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)

    train(net, optimizer, arm, before_step=clip)
    return weights(model)


@case(
    "clipping after accumulation with no_sync",
    "barrier",
    why="As clipping; only the summed gradient of all passes is clipped.",
)
def clipped_and_accumulated(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        with arm.no_sync(model):
            loss_of(net, arm, step + 100).backward()
        loss_of(net, arm, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return weights(model)


@case(
    "reading p.grad between backward and step",
    "barrier",
    why="A read of `p.grad` returns the mean over the ranks, so it waits for that mean.",
)
def read_gradients(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    read: Values = {}

    def look() -> None:
        read.update(gradients(model, f"gradient {len(read)} of "))

    train(net, optimizer, arm, before_step=look)
    return weights(model) | read


@case(
    "reading one p.grad between backward and step",
    "barrier",
    why="Only the gradient that is read is waited for, but it needs the other ranks.",
)
def read_one_gradient(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    norms = []
    train(net, optimizer, arm, before_step=lambda: norms.append(model[5].bias.grad.norm()))
    return weights(model) | {"norms": torch.stack(norms)}


@case(
    "writing p.grad between backward and step",
    "barrier",
    why="The optimizer gets the value that is written.",
    ways=("in place", "replaced", "some set to None"),
)
def write_gradients(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)

    def write() -> None:
        for p in model.parameters():
            if way == "in place":
                p.grad.mul_(0.5)
            elif way == "replaced":
                p.grad = p.grad.sign()
            elif p.ndim == 1:
                p.grad = None

    train(net, optimizer, arm, before_step=write)
    return weights(model) | state_of(optimizer)


@case(
    "hooks of one's own on gradients",
    "exact",
    why="They run before the gradient is sent, on each rank's own part, as under DDP.",
    ways=("register_hook", "register_post_accumulate_grad_hook"),
)
def gradient_hooks(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)

    def clamp_in_place(parameter: Any) -> None:
        parameter.grad.clamp_(-0.01, 0.01)

    for p in model.parameters():
        if way == "register_hook":
            p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        else:
            p.register_post_accumulate_grad_hook(clamp_in_place)
    train(net, optimizer, arm)
    return weights(model)


@case(
    "an alias of weights or gradients taken before",
    "barrier",
    why="A tensor that shares a parameter's memory is brought up to date with it.",
    ways=("weights", "gradients"),
)
def aliases(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)
    loss_of(net, arm, 100).backward()
    taken = [p.data if way == "weights" else p.grad for p in model.parameters()]
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, arm, step).backward()
        if way == "gradients":
            for alias in taken:
                alias.clamp_(-0.01, 0.01)
        optimizer.step()
        if way == "weights":
            for alias in taken:
                alias.mul_(0.99)
    return weights(model)


# --- more than one forward or backward ------------------------------------------------------------


@case(
    "several forward passes for one backward pass",
    "exact",
    why="Parameters are up to date after the first; the gradient is complete after the last.",
)
def several_forwards(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)

    def loss_of_three(net: Net, arm: Arm, step: int) -> torch.Tensor:
        return sum((loss_of(net, arm, step + 100 * k) for k in (2, 1, 0)), torch.tensor(0.0))

    train(net, optimizer, arm, loss_of=loss_of_three)
    return weights(model)


class Integers(nn.Module):
    """All sums of its gradients are exact, so any order of adding them gives the same bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, CLASSES)
        self.second = nn.Linear(FEATURES, 40)
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(64).round_()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = (4 * x).round()
        return self.first(x).abs().sum(), self.second(x).abs().sum() + self.first(x).sum()


def exact_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1 / 16)


@case(
    "two backward passes through one graph (retain_graph)",
    "barrier",
    why="Each is summed, and the second waits for the first. DDP leaves the second one out.",
)
def retained(arm: Arm) -> Values:
    model = Integers()
    optimizer = exact_sgd(model)
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        first, second = net(arm.batch(step)[0])
        arm.pause(step)
        if arm.is_ddp:
            (first + second).backward()
        else:
            first.backward(retain_graph=True)
            second.backward()
        optimizer.step()
    return weights(model)


@case(
    "two forward passes, then a backward pass each",
    "barrier",
    why="Each is summed, and the second waits for the first. DDP leaves the second one out.",
)
def two_and_two(arm: Arm) -> Values:
    model = Integers()
    optimizer = exact_sgd(model)
    net = arm.prepare(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [sum(net(arm.batch(step + 100 * k)[0])) for k in range(2)]
        arm.pause(step)
        if arm.is_ddp:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        optimizer.step()
    return weights(model)


@case(
    "gradient penalty (double backward)",
    "exact",
    why="Only what is accumulated in `p.grad` is sent; `torch.autograd.grad` stays local.",
    ways=("on inputs", "on weights"),
)
def penalty(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)

    def penalised(net: Net, arm: Arm, step: int) -> torch.Tensor:
        inputs, targets = arm.batch(step)
        inputs.requires_grad_()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        arm.pause(step)
        wanted = [inputs] if way == "on inputs" else [*model.parameters()]
        found = torch.autograd.grad(loss, wanted, create_graph=True)
        return loss + sum(gradient.square().sum() for gradient in found)

    train(net, optimizer, arm, loss_of=penalised)
    return weights(model)


@case(
    "a backward pass without a step",
    "exact",
    why="The gradient is summed, and thrown away by `zero_grad`.",
)
def without_step(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss_of(net, arm, step).backward()
        if step not in (1, 4):
            optimizer.step()
    return weights(model)


@case(
    "a forward pass without a backward pass",
    "exact",
    why="It waits for the parameters that it uses, and changes nothing.",
)
def without_backward(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net, arm, step)
        if step not in (1, 4):
            loss.backward()
            optimizer.step()
    return weights(model)


@case("two steps with one gradient", "exact", why="The second step waits for the first.")
def stepping_twice(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    train(net, optimizer, arm)
    optimizer.step()
    return weights(model) | state_of(optimizer)


# --- somebody looks at weights --------------------------------------------------------------------


@case(
    "eval() and no_grad passes between steps",
    "exact",
    why="They see the weights of the last step; only they wait for them.",
    ways=("no_grad", "inference_mode", "with gradients", "of a part of the model", "on one rank"),
)
def evaluation(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)
    outputs: Values = {}

    def evaluate() -> None:
        model.eval()
        modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
        part = model[:3] if way == "of a part of the model" else model
        if way != "on one rank" or arm.rank == 0:
            with modes.get(way, torch.enable_grad)():
                output = part(torch.ones(2, FEATURES)).clone().detach()
            outputs[f"on this rank: output {len(outputs)}"] = output
        model.train()

    for step in range(STEPS):
        train(net, optimizer, arm, steps=[step])
        if step in (0, 2, 4):
            evaluate()
    return weights(model) | outputs


@case(
    "changing weights by hand between steps",
    "barrier",
    why="A tensor that is read or written is brought up to date first.",
    ways=("p.data", "no_grad", "vector_to_parameters"),
)
def changed_by_hand(arm: Arm, way: str) -> Values:
    model, net, optimizer = prepared(arm)

    def shrink() -> None:
        with torch.no_grad():
            if way == "vector_to_parameters":
                vector = nn.utils.parameters_to_vector(model.parameters())
                nn.utils.vector_to_parameters(0.99 * vector, model.parameters())
                return
            for p in model.parameters():
                (p.data if way == "p.data" else p).mul_(0.99)

    train(net, optimizer, arm, after_step=shrink)
    return weights(model)


# --- uneven inputs, skipped batches ---------------------------------------------------------------


@case(
    "uneven inputs",
    "exact",
    why="`with bytelane.join(model):` lets ranks that have no batch left take part with zeros.",
    probed=False,
)
def uneven_inputs(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    with arm.join(model):
        train(net, optimizer, arm, steps=range(STEPS + 2 * arm.rank))
    return weights(model)


@case(
    "uneven inputs with no_sync",
    "exact",
    why="Ranks without batches take part only in what is summed.",
    probed=False,
)
def uneven_accumulated_inputs(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)
    with arm.join(model):
        for step in range(STEPS + 2 * arm.rank):
            optimizer.zero_grad()
            with arm.no_sync(model):
                loss_of(net, arm, step + 100).backward()
            loss_of(net, arm, step).backward()
            optimizer.step()
    return weights(model)


@case(
    "going on after uneven inputs",
    "exact",
    why="After the block all ranks hold the weights of the rank that trained longest.",
    probed=False,
)
def after_uneven_inputs(arm: Arm) -> Values:
    model = nn.Sequential(nn.Linear(FEATURES, 20), nn.Tanh(), nn.Linear(20, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # a momentum would not be the same
    net = arm.prepare(model, optimizer)
    with arm.join(model):
        train(net, optimizer, arm, steps=range(STEPS + arm.rank))
    train(net, optimizer, arm, steps=range(20, 24))
    return weights(model)


@case(
    "a batch that is skipped after an exception",
    "exact",
    why="An exception in a forward pass, on all ranks, leaves nothing behind.",
)
def skipped_batch(arm: Arm) -> Values:
    model, net, optimizer = prepared(arm)

    def refuse(*_: object) -> None:
        raise MemoryError

    for step in range(STEPS):
        optimizer.zero_grad()
        handle = model[3].register_forward_hook(refuse) if step in (1, 5) else None
        try:
            loss_of(net, arm, step).backward()
            optimizer.step()
        except MemoryError:
            assert handle is not None
            handle.remove()
    return weights(model)
