"""Sentinels on hosts of their own, with real links between them."""

import os
import sys
from pathlib import Path

import pytest

from bytelane.lab import Lab
from bytelane.lab.tools import find_tool
from labs import Heard, need

pytestmark = pytest.mark.timeout(60)

# Addresses are exchanged by files here, by a process group in a training.
RANK = """
import os, signal, subprocess, sys, time
from pathlib import Path
from bytelane.runtime.liveness.address import reachable_address
from bytelane.runtime.liveness.failure_detector import Limits
from bytelane.runtime.liveness.watcher import Watcher

said = []

def say(line):
    said.append(line)
    print(line, flush=True)

def await_line(start):
    \"\"\"The other side of a link says the same, about a second before or after.\"\"\"
    while not any(line.startswith(start) for line in said):
        time.sleep(0.01)
    time.sleep(1.2)

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which a lab sends to all when one has died
rank, world, folder, ip = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), *sys.argv[1:]
host = reachable_address(os.environ["MASTER_ADDR"])
watcher = Watcher(rank, world, host=host, say=say, limits=Limits(silent_s=2.0, lost_s=20.0))
files = [Path(folder, str(rank)) for rank in range(world)]
draft = Path(folder, f"draft{rank}")
draft.write_bytes(watcher.address)
draft.rename(files[rank])
while not all(file.exists() for file in files):
    time.sleep(0.01)
for peer in set(range(world)) - {rank}:
    watcher.connect(peer, files[peer].read_bytes())
time.sleep(0.5)  # everybody has heard everybody
if rank == 1:
    subprocess.run([ip, "link", "set", "lane0", "down"], check=True)
    await_line("nothing was heard")
    subprocess.run([ip, "link", "set", "lane0", "up"], check=True)
    await_line("now heard")
    os.kill(os.getpid(), signal.SIGKILL)
print(repr(watcher.loss(30)), flush=True)
watcher.close()
"""


def test_a_link_may_be_cut_and_a_death_on_another_host_is_named(tmp_path: Path) -> None:
    need("namespace")
    if os.geteuid() != 0:
        pytest.skip("only root may cut a host's link from inside")
    heard = Heard()
    with Lab(3, "100Mbit", mode="namespace") as lab:
        lab.run(
            [sys.executable, "-c", RANK, str(tmp_path), find_tool("ip")],
            output=heard,
            grace_s=10.0,
            timeout_s=40.0,
        )
        place = lab.addresses[1]
    for rank in (0, 2):
        silence, again, loss = heard.of(rank)
        assert silence == "nothing was heard of rank 1 for 2 s; after 20 s that is an error"
        assert again.startswith("now heard of rank 1")
        assert loss.startswith("PeerLost('rank 1 has died (process ")
        assert loss.endswith(f" on {place})', 1)")
    assert heard.of(1)[0].startswith("nothing was heard of ranks 0 and 2")
