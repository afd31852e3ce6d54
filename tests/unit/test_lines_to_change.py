"""What ``bytelane try`` says to change: real lines, in the script's own names."""

import textwrap
from pathlib import Path

import pytest

from bytelane.bench.script.lines_to_change import advise
from bytelane.bench.script.trial import Line, Wrapped

SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "the optimizer is made before": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        model.load_state_dict(found); adam = model.configure_optimizers(0.1)  # optimizer
        if ddp:
            model = DDP(model, device_ids=[local_rank])  # wrap
        raw_model = model.module if ddp else model
        model.require_backward_grad_sync = False
        """,
        [
            "line 4, instead of",
            "    model = DDP(model, device_ids=[local_rank])  # wrap",
            "write",
            "    bytelane.prepare(model, adam)",
            "line 5: model instead of model.module",
        ],
    ),
    "the optimizer is made after, from another name": (
        """
        import torch
        ddp_net = torch.nn.parallel.DistributedDataParallel(net)  # wrap
        opt = torch.optim.SGD(  # optimizer
            ddp_net.parameters(), lr=0.1
        )
        with ddp_net.no_sync():
            save(ddp_net.module, ddp_net.module.config)
        save(ddp_net.state_dict())
        """,
        [
            "line 2, instead of",
            "    ddp_net = torch.nn.parallel.DistributedDataParallel(net)  # wrap",
            "write",
            "    ddp_net = net",
            "after line 5, add",
            "    bytelane.prepare(ddp_net, opt)",
            "line 7: ddp_net instead of ddp_net.module",
            "line 6: bytelane.no_sync(ddp_net) instead of ddp_net.no_sync()",
            "line 8: the names have no module. in front any more",
        ],
    ),
    "attributes": (
        """
        from torch.nn.parallel import DistributedDataParallel
        class Trainer:
            def __init__(self, model):
                self.model = DistributedDataParallel(module=model.to("cpu"))  # wrap
                self.optimizer = make(self.model)  # optimizer
            def save(self):
                return self.model.module.state_dict()
        """,
        [
            "line 4, instead of",
            '    self.model = DistributedDataParallel(module=model.to("cpu"))  # wrap',
            "write",
            "    self.model = model.to('cpu')",
            "after line 5, add",
            "    bytelane.prepare(self.model, self.optimizer)",
            "line 7: self.model instead of self.model.module",
        ],
    ),
    "compiled around it": (
        """
        from torch.nn.parallel import DistributedDataParallel as Wrapper
        model = torch.compile(Wrapper(model))  # wrap
        first = SGD(model.a.parameters())  # optimizer
        second = SGD(model.b.parameters())  # optimizer
        """,
        [
            "line 2, instead of",
            "    model = torch.compile(Wrapper(model))  # wrap",
            "write",
            "    model = torch.compile(model)",
            "after line 4, add",
            "    bytelane.prepare(model, [first, second])",
        ],
    ),
    "the optimizer is made in another function": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        def wrap(net):
            model = DDP(net)  # wrap
            return model
        def main():
            optimizer_d = SGD()  # optimizer
        """,
        [
            "line 3, instead of",
            "    model = DDP(net)  # wrap",
            "write",
            "    model = net",
            "after the optimizer is made, add",
            "    bytelane.prepare(model, optimizer)",
        ],
    ),
    "nothing is left of the line": (
        """
        from torch.nn.parallel import DistributedDataParallel as DDP
        model = DDP(model)  # wrap
        optimizer = SGD(model.parameters())  # optimizer
        """,
        [
            "line 2, leave out",
            "    model = DDP(model)  # wrap",
            "after line 3, add",
            "    bytelane.prepare(model, optimizer)",
        ],
    ),
}

STARRED = "from torch.nn.parallel import DistributedDataParallel as DDP; model = DDP(*arguments)\n"


def wrapped_in(file: Path) -> Wrapped:
    lines = file.read_text().splitlines()
    found = [Line(str(file), n, text.strip()) for n, text in enumerate(lines, start=1)]
    (at,) = (line for line in found if line.text.endswith("# wrap"))
    return Wrapped(at, tuple(line for line in found if line.text.endswith("# optimizer")))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_lines_to_change_are_told_in_the_scripts_own_names(tmp_path: Path, script: str) -> None:
    text, advice = SCRIPTS[script]
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(text).lstrip())
    assert advise(wrapped_in(file)) == [
        f"to train with it, in {file}, with import bytelane above:",
        *advice,
    ]


@pytest.mark.parametrize("text", [None, "x = (\n", "model = wrap(net)\n", "\0", STARRED])
def test_a_line_that_cannot_be_read_gets_plain_advice(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "train.py"
    if text is not None:
        file.write_text(text)
    said = advise(Wrapped(Line(str(file), 1, "model = wrap(net)")))
    assert said[0] == f"to train with it, in {file}, line 1, instead of"
    assert said[-1] == "    bytelane.prepare(model, optimizer)"


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("accelerate/accelerator.py", "BytelaneAccelerator"),
        ("lightning/pytorch/strategies/ddp.py", "strategy=BytelaneStrategy()"),
    ],
)
def test_a_library_that_wraps_has_a_class_of_its_own(library: str, words: str) -> None:
    (said,) = advise(Wrapped(Line(f"/site-packages/{library}", 1, "model = DDP(model)")))
    assert words in said
