"""CPU seconds of the commands that people type most, each in a new process.

python benchmarks/startup.py
"""

import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bytelane.job import Job, Layer, Tensor, save

REPEATS = 7


def cpu_s(*command: str) -> float:
    """User and system time of a child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "bytelane", *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def hundred_layers() -> Job:
    layers = tuple(Layer(f"layer{i}", 1e-3, 2e-3) for i in range(100))
    return Job("hundred", layers, tuple(Tensor(f"t{i}", 10**6, (i,)) for i in range(100)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "hundred.toml"
        save(hundred_layers(), job)
        cpu_s("simulate", str(job))  # fills the cache
        for name, command, most in (
            ("bytelane --help", ("--help",), 0.4),
            ("bytelane simulate, 100 layers, cached", ("simulate", str(job), "--json"), 1.5),
        ):
            times = sorted(cpu_s(*command) for _ in range(REPEATS))
            print(
                f"{name:<40} {median(times):.2f} s of CPU "
                f"({times[0]:.2f} to {times[-1]:.2f}; at most {most} s wanted)"
            )
    print(f"{platform.platform()}, Python {platform.python_version()}, {REPEATS} runs each")


if __name__ == "__main__":
    main()
