"""Training through real parameter servers: bit for bit what one process would compute."""

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import numpy_ps_training
from numpy_training import RATE, SHAPES, Model, run
from ps_servers import server_processes

SCRIPT = Path(numpy_ps_training.__file__)
STEPS = 20
LIMIT_S = 60


@cache
def trained_by_one_process(world: int) -> str:
    """Sum the workers' gradients, each times 1/world, in rank order, and step with that."""
    models, factor = [Model() for _ in range(world)], np.float32(1 / world)
    for step in range(STEPS):
        for rank, model in enumerate(models):
            run(model, rank, step, lambda layer: None, lambda layer: None)
        for layer in range(len(SHAPES)):
            total = np.asarray(models[0].gradients[layer]) * factor
            for model in models[1:]:
                total = total + np.asarray(model.gradients[layer]) * factor
            for model in models:
                model.weights[layer] -= RATE * total
    return hashlib.sha256(b"".join(w.tobytes() for w in models[0].weights)).hexdigest()


def train(world: int, servers: int, policy: str) -> list[list[str]]:
    """Train on worker processes, return what they have printed; the servers end by themselves."""
    with server_processes(servers) as running:
        addresses = [str(address) for _, address in running]
        workers = [
            subprocess.Popen(
                [sys.executable, SCRIPT, *map(str, (rank, world, STEPS)), policy, *addresses],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            printed = [worker.communicate(timeout=LIMIT_S)[0].split() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert [worker.returncode for worker in workers] == [0] * world
        for server, _ in running:
            ended, _ = server.communicate(timeout=LIMIT_S)
            # Between two connections there is no order: an acknowledgement may follow a Leave.
            assert set(json.loads(ended)["dropped"]) <= {"its sender has not joined"}
            assert server.returncode == 0
    return printed


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("world", [2, 3])
def test_it_crosses_the_barrier_and_equals_one_process_to_the_last_bit(
    world: int, servers: int
) -> None:
    for digest, crossed, has_torch in train(world, servers, "bytescheduler"):
        assert digest == trained_by_one_process(world)
        assert int(crossed) > 0
        assert has_torch == "False"


@pytest.mark.parametrize("policy", ["sequential", "fusion", "tic", "units"])
def test_every_kind_of_policy_gives_the_same_bits(policy: str) -> None:
    for digest, _, _ in train(2, 2, policy):
        assert digest == trained_by_one_process(2)
