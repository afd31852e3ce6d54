"""Run a user's script as one rank: ``python -m bytelane.bench.script.rank FOLDER``.

The script runs in this process, as ``python script.py`` would run it.
"""

import os
import random
import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist

import bytelane
from bytelane.bench.script.compiled import has_gates_in_graphs, splits_graphs
from bytelane.bench.script.folder import RunFolder
from bytelane.bench.script.follow import Follower
from bytelane.bench.script.stand_in import Followed, Prepared, Silent, in_place_of_ddp
from bytelane.bench.script.trial import Errand, RankReport
from bytelane.bench.script.weights import digest_of, save_weights, weights_of
from bytelane.errors import BytelaneError, NotSupported
from bytelane.foreign.torch import split_no_graphs
from bytelane.lifetime import end_with_owner
from bytelane.measure.patches import replaced
from bytelane.measure.script import ScriptFailed, run_script
from bytelane.measure.script_discovery import Stop
from bytelane.terminal import relay

REFUSED = 2
SENDINGS = 6
FLOAT_BYTES = 4


def main(folder: RunFolder) -> int:
    """Run this rank, write its report, return the exit code."""
    errand, rank = folder.errand(), int(os.environ["RANK"])
    end_with_owner(folder.path.parent)
    folder.redirect_output(rank)
    if errand.arm.way == "communication":
        report = _send_only(errand.gradient_bytes, rank)
    else:
        report = _train(errand, rank, folder)
    folder.report(report)
    return report.code


def _train(errand: Errand, rank: int, folder: RunFolder) -> RankReport:
    trial = errand.trial
    _seed(rank)
    if errand.arm.whole_graphs:
        split_no_graphs()
    follower = Follower(trial.iterations, folder.step_counter() if rank == 0 else None)
    with follower, _stand_in(errand, follower), replaced(bytelane, "prepare", _refuse_to_prepare):
        try:
            run_script(Path(trial.script), trial.arguments)
        except Stop:
            pass
        except ScriptFailed as failure:
            return _failed(failure, errand, rank)
    modules = [wrapper.module for wrapper in follower.wrappers]
    if rank == 0:
        save_weights(weights_of(modules), folder.weights)
    return RankReport(
        rank,
        _world(),
        steps=follower.steps,
        times_s=follower.steady_s(),
        wrapped=follower.wrapped(),
        gradient_bytes=sum(map(_gradient_bytes, modules)),
        digest=digest_of(modules),
        splits_graphs=splits_graphs(),
        has_gates_in_graphs=has_gates_in_graphs(),
    )


def _stand_in(errand: Errand, follower: Follower) -> AbstractContextManager[None]:
    arm = errand.arm
    if arm.is_ddp:
        return in_place_of_ddp(Followed, follower=follower, bucket_bytes=arm.bucket_bytes)
    if arm.way == "compute":
        return in_place_of_ddp(Silent, follower=follower)
    runtime = SimpleNamespace(
        prepare=partial(bytelane.prepare, **errand.trial.knobs),
        no_sync=bytelane.no_sync,
        join=bytelane.join,
    )
    return in_place_of_ddp(Prepared, follower=follower, runtime=runtime)


class _PreparedAlready(NotSupported):
    """The script trains with Bytelane by itself."""


def _refuse_to_prepare(*_: object, **__: object) -> NoReturn:
    raise _PreparedAlready(
        "it calls bytelane.prepare already; try takes the script as it was, with "
        "DistributedDataParallel"
    )


def _failed(failure: ScriptFailed, errand: Errand, rank: int) -> RankReport:
    reason = failure.__context__  # the exception that the script has not caught
    is_ours = isinstance(reason, BytelaneError) and not errand.arm.is_ddp
    if is_ours or isinstance(reason, _PreparedAlready):
        return RankReport(rank, _world(), REFUSED, refused=str(reason))
    relay(str(failure), file=sys.stderr)
    return RankReport(rank, _world(), failure.code)


def _seed(rank: int) -> None:
    """Seed random numbers: the same in every run, different on every rank."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)


def _world() -> int:
    return int(os.environ["WORLD_SIZE"])


def _gradient_bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def _send_only(gradient_bytes: int, rank: int) -> RankReport:
    """Send as many bytes as the gradients have, in the best units."""
    from bytelane.bench.trainers import CommunicationTrainer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = CommunicationTrainer(gradient_bytes // FLOAT_BYTES * FLOAT_BYTES)
    trainer.warm_up()
    times_s = trainer.repeat(SENDINGS)
    dist.destroy_process_group()
    return RankReport(rank, _world(), times_s=times_s)


if __name__ == "__main__":
    sys.exit(main(RunFolder(Path(sys.argv[1]))))
