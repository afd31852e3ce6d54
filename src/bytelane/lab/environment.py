"""Environment variables of a command in a lab: torchrun's, and the addresses of the hosts."""

import os
from collections.abc import Mapping, Sequence

HOSTS = "BYTELANE_LAB_HOSTS"


def rank_environment(
    rank: int,
    addresses: Sequence[str],
    master_port: int,
    device: str,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the whole environment of one rank; every host has one rank."""
    world = str(len(addresses))
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": world,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RUN_ID": f"bytelane-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Or gloo resolves the machine's host name, which fails inside a host of the lab.
        "GLOO_SOCKET_IFNAME": device,
        "NCCL_SOCKET_IFNAME": device,
        "TP_SOCKET_IFNAME": device,
        HOSTS: ",".join(addresses),
    }
    # Ranks share this machine's cores, as under torchrun; and output must not be buffered.
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**defaults, **os.environ, **given, **(extra or {})}
