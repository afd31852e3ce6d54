"""What one rank of an experiment does: ``python -m bytelane.bench.rank FOLDER RANK``."""

import sys
from pathlib import Path
from statistics import quantiles

import msgspec
import torch
import torch.distributed as dist

from bytelane.bench.emulate import EmulatedModel, expected_weight
from bytelane.bench.experiment import Contender, Experiment, Outcome
from bytelane.cluster import Cluster, Link
from bytelane.lab import open_sockets, pace
from bytelane.measure import measure_link
from bytelane.runtime.torch import Session, attach
from bytelane.runtime.torch.session import MEASURED_ITERATIONS
from bytelane.sim import make_planner, simulate

TIMEOUT_S = 60.0
# After the measured iterations one more is spent under the new plan before any is counted.
FIRST_COUNTED = max(MEASURED_ITERATIONS) + 2


def main(folder: Path, rank: int) -> None:
    """Run every contender; rank 0 writes what came out."""
    experiment = msgspec.json.decode((folder / "experiment.json").read_bytes(), type=Experiment)
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, rank=rank, world_size=experiment.workers)
    outcomes = [_run(experiment, contender, rank) for contender in experiment.contenders]
    if rank == 0:
        (folder / "outcomes.json").write_bytes(msgspec.json.encode(outcomes))
    dist.barrier()
    dist.destroy_process_group()


def _run(experiment: Experiment, contender: Contender, rank: int) -> Outcome:
    job = experiment.job
    model = EmulatedModel(job, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    planner = make_planner(contender.policy, contender.knobs)
    total = FIRST_COUNTED + experiment.iterations
    before = open_sockets()
    session = attach(model, optimizer, planner, timeout_s=TIMEOUT_S, keep_iterations=total + 1)
    assert session is not None
    pace(open_sockets() - before, experiment.rate)
    link, _ = measure_link(session.group)
    for iteration in range(total):
        model.iteration = iteration
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        optimizer.step()
        if rank == 0:
            print(f"{contender.policy} {iteration + 1}/{total}", flush=True)
    session.flush()
    exact = _is_exact(model, experiment.workers, total)
    return _outcome(session, experiment, contender, link, exact)


def _is_exact(model: EmulatedModel, world: int, iterations: int) -> bool:
    exact = all(
        torch.equal(weight, expected_weight(t, weight.numel(), world, iterations))
        for t, weight in enumerate(model.weights)
    )
    everywhere = torch.tensor(int(exact))
    dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
    return bool(everywhere)


def _outcome(
    session: Session, experiment: Experiment, contender: Contender, link: Link, exact: bool
) -> Outcome:
    """Lay what was predicted from the first iterations beside what the later ones took."""
    assert session.job is not None
    found = simulate(session.job, Cluster(experiment.workers, link), session.plan, "interpreted")
    trace = session.watch.trace("rank 0")
    counted = range(FIRST_COUNTED, FIRST_COUNTED + experiment.iterations - 1)
    times = {k: seconds for k in counted if (seconds := trace.iteration_s(k)) is not None}
    low, middle, high = quantiles(times.values(), n=4)
    typical = min(times, key=lambda k: abs(times[k] - middle))
    return Outcome(
        contender=contender,
        link=link,
        predicted_s=found.iteration_s,
        real_s=middle,
        real_spread_s=high - low,
        compute_s=found.compute_s,
        communication_s=found.communication_s,
        weights_exact=exact,
        predicted=found.trace.from_iteration(1, count=2),
        real=trace.from_iteration(typical, count=2),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
