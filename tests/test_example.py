"""The example in the repository runs as its first lines say."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "train.py"


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, str(EXAMPLE)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\S+)", output)]


def test_two_workers_learn_and_the_first_may_look_after_the_other_has_left() -> None:
    output = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert losses(output)[-1] < 0.5 < losses(output)[0]
    assert "trained; the weights have norm" in output


def test_one_worker_trains_without_torchrun() -> None:
    output = run()
    assert "nothing to synchronise" in output
    assert losses(output)[-1] < 0.5
