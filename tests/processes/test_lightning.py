"""Lightning's trainer with Bytelane's strategy does what it does with DDP's."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import Pool

pytest.importorskip("lightning")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Two processes of their own: the library changes much in them."""
    with Pool(2) as pool:
        yield pool


SAMPLES, BATCH = 96, 6


def make_module(calls_itself: bool = True, optimizer: str = "adamw") -> Any:
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
            )

        def forward(self, x: torch.Tensor) -> Any:
            return self.body(x)

        def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
            inputs, targets = batch
            output = self(inputs) if calls_itself else self.body(inputs)
            return torch.nn.functional.cross_entropy(output, targets)

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            return self.loss(batch)

        def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
            self.log("validation", self.loss(batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            if optimizer == "lbfgs":
                return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=2)
            chosen = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5)]

    return Net()


def loader() -> Any:
    chance = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 8, generator=chance)
    targets = torch.randint(4, (SAMPLES,), generator=chance)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), BATCH, shuffle=True
    )


def make_trainer(rank: int, ours: bool, **options: Any) -> Any:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"TORCHELASTIC_RUN_ID": "test"}  # the ranks are there already
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    from bytelane.integrations.lightning import BytelaneStrategy

    lightning.seed_everything(3, verbose=False)
    knobs = {"policy": "bytescheduler", "partition": 256, "credit": 512}
    return lightning.Trainer(
        strategy=BytelaneStrategy(knobs) if ours else DDPStrategy(process_group_backend="gloo"),
        accelerator="cpu",
        devices=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"max_epochs": 2, "enable_checkpointing": False} | options),
    )


def fit(rank: int, ours: bool, module: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Train; return all weights, and what was measured with them."""
    trainer = make_trainer(rank, ours, **options)
    net = make_module(**module)
    trainer.fit(net, loader(), loader())
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {**net.state_dict(), **metrics, "steps": trainer.global_step}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one
    )


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ({}, {}),
        ({"calls_itself": False}, {}),
        ({}, {"gradient_clip_val": 0.1}),
        ({}, {"accumulate_grad_batches": 3}),
        ({}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}),
        ({"optimizer": "lbfgs"}, {"max_epochs": 1}),
    ],
    ids=["plain", "submodules only", "clipped", "accumulated", "both", "coupled parameters"],
)
def test_everything_equals_ddps_to_the_last_bit(
    ranks: Pool, module: dict[str, Any], options: dict[str, Any]
) -> None:
    theirs, ours = (ranks.run(fit, ours=one, module=module, **options) for one in (False, True))
    assert same(ours[0], theirs[0])
    parameters = ["body.0.weight", "body.1.bias", "body.2.weight"]
    assert all(torch.equal(ours[1][name], ours[0][name]) for name in parameters)


def resumed(rank: int, ours: bool, folder: str) -> Any:
    """Train an epoch, go on from its checkpoint with a new model; return what was saved."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    for epochs in (1, 3):
        keep = ModelCheckpoint(dirpath=folder, filename=f"{epochs}", save_top_k=-1)
        trainer = make_trainer(
            rank, ours, max_epochs=epochs, enable_checkpointing=True, callbacks=[keep]
        )
        before = f"{folder}/1.ckpt" if epochs > 1 else None
        trainer.fit(make_module(), loader(), loader(), ckpt_path=before)
    saved = torch.load(f"{folder}/3.ckpt", weights_only=True)
    moments = [state["exp_avg"] for state in saved["optimizer_states"][0]["state"].values()]
    return saved["state_dict"] | {str(i): moment for i, moment in enumerate(moments)}


def test_a_checkpoint_can_be_gone_on_from(ranks: Pool, tmp_path: Path) -> None:
    theirs, ours = (
        ranks.run(resumed, ours=one, folder=str(tmp_path / str(one))) for one in (False, True)
    )
    assert len(ours[0]) > 10
    assert same(ours[0], theirs[0])


def refused(rank: int) -> str:
    from bytelane.errors import NotSupported
    from bytelane.integrations.lightning import BytelaneStrategy

    with pytest.raises(NotSupported) as refusal:
        BytelaneStrategy(find_unused_parameters=True)
    return str(refusal.value)


def test_what_concerns_ddp_alone_is_refused(ranks: Pool) -> None:
    assert "find_unused_parameters concerns DistributedDataParallel" in ranks.run(refused)[0]


def overlapping(rank: int) -> bool:
    """Tell whether updates were still owed when step() had returned, at least once."""
    from bytelane.runtime.torch import session_of

    owed = []

    def look(trainer: Any, module: Any, *_: Any) -> None:
        owed.append(len(session_of(module).sync.tensors.owed))

    import lightning

    watch = lightning.Callback()
    watch.on_train_batch_end = look  # type: ignore[method-assign]
    trainer = make_trainer(rank, True, max_epochs=2, callbacks=[watch])
    trainer.fit(make_module(), loader())
    return max(owed) > 0


def test_steps_return_while_gradients_are_under_way(ranks: Pool) -> None:
    assert any(ranks.run(overlapping))


SCRIPT = """
import lightning
import torch

from bytelane.integrations.lightning import BytelaneStrategy


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    strategy=BytelaneStrategy(), devices=2, accelerator="cpu", max_steps=6, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
net = Net()
trainer.fit(net, torch.utils.data.DataLoader(torch.randn(64, 4), 4))
print(f"rank {trainer.global_rank} has {net.layer.weight.sum().item():.6f}\\n", end="", flush=True)
"""


def test_the_trainer_starts_the_workers_itself(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "fit.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert [line.split()[1] for line in lines] == ["0", "1"]
    assert len({line.split()[-1] for line in lines}) == 1
