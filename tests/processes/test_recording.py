"""A recording that can no longer be written does not end the training that it records."""

import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
import torch

import bytelane
from bytelane.errors import InputError
from ranks import Pool
from training import make, train, weights

OWN = {"policy": "bytescheduler", "partition": "1KiB", "credit": "3KiB"}


def with_and_without(rank: int, trace: str, output: str, vanishing: str = "") -> bool:
    """Train without a recording and with one, whose folder may vanish; compare the weights."""
    trained = []
    for path in (None, trace):
        net, opt = make()
        file = open(output.format(rank=rank), "w")  # noqa: SIM115 - closed below, if it can be
        with redirect_stdout(file):
            bytelane.prepare(net, opt, timeout_s=30, trace=path, **OWN)
            train(net, opt, rank, steps=1)
            if vanishing and path:
                shutil.rmtree(vanishing, ignore_errors=True)  # the other rank does so, too
            train(net, opt, rank, steps=4)
            trained.append(weights(net))
        with suppress(OSError):
            file.close()
    return all(map(torch.equal, *trained))


def test_training_goes_on_when_the_disk_is_full(two_ranks: Pool, tmp_path: Path) -> None:
    output = str(tmp_path / "{rank}.out")
    assert two_ranks.run(with_and_without, trace="/dev/full", output=output) == [True, True]
    line = "bytelane: the trace /dev/full ends here (No space left on device); training goes on"
    assert (tmp_path / "0.out").read_text().count(line) == 1
    assert "trace" not in (tmp_path / "1.out").read_text()


def test_training_goes_on_when_not_even_that_can_be_said(two_ranks: Pool) -> None:
    """The output is a file on the same disk."""
    answers = two_ranks.run(with_and_without, trace="/dev/full", output="/dev/full")
    assert answers == [True, True]


def test_training_goes_on_when_the_folder_vanishes(two_ranks: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "vanishing"
    answers = two_ranks.run(
        with_and_without,
        trace=str(folder / "{rank}.jsonl"),
        output=str(tmp_path / "{rank}.out"),
        vanishing=str(folder),
    )
    assert answers == [True, True]
    assert not folder.exists()


@pytest.mark.parametrize("path", ["/dev/null/below", "/proc/no/such.jsonl", "/"])
def test_a_trace_that_cannot_be_written_is_a_sentence_before_training(path: str) -> None:
    net, opt = make()
    with pytest.raises(InputError, match=f"^{path} cannot be written: .+; give trace another file"):
        bytelane.prepare(net, opt, trace=path)


FILL = """
import sys
from pathlib import Path
from bytelane.core import Event
from bytelane.trace.recording import Recorder, RoundLine, read
path = Path(sys.argv[1], "trace.jsonl")
recorder = Recorder(path)
events = tuple(Event(float(k), "ready", k) for k in range(100))
for step in range(100):
    recorder.write(RoundLine(step, 0, events, ()))
recorder.close()
steps = [line.step for line in read(path)]
assert 0 < len(steps) < 100 and steps == list(range(len(steps))), steps
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_a_recording_on_a_full_file_system_has_its_first_lines(tmp_path: Path) -> None:
    small = f"mount -t tmpfs -o size=32k none {tmp_path} && exec {sys.executable} -c"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{small} "$0" {tmp_path}', FILL],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "permitted" in done.stderr or "permission" in done.stderr:
        pytest.skip("this root may not mount")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("No space left on device") == 1
