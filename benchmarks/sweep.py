"""Wall time of a sweep in one process and on all cores, the two in turn.

python benchmarks/sweep.py
"""

import os
import subprocess
import sys
import time
from pathlib import Path

BYTELANE = Path(sys.executable).with_name("bytelane")
REPEATS = 5
ALL = """--overhead 20us --latency 50us --policy bytescheduler,p3,units
    --bandwidth 5Gbit,10Gbit,25Gbit,50Gbit
    --partition 64KiB,128KiB,256KiB,512KiB,1MiB,2MiB,4MiB,8MiB,16MiB,32MiB,64MiB"""
SWEEPS = {
    "workers alike": """resnet50 vgg16 bert-large --workers 2,4,8,16
        --credit 64KiB,128KiB,256KiB,512KiB,1MiB,2MiB,4MiB,8MiB,16MiB,32MiB""",
    "one slow worker": "resnet50 vgg16 bert-large --workers 8 --slow 1.5 --credit 1MiB,4MiB",
}


def wall_s(options: str, executor: str) -> float:
    began = time.monotonic()
    command = [BYTELANE, "sweep", *options.split(), *ALL.split(), "--executor", executor]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=600)
    return time.monotonic() - began


def main() -> None:
    for name, options in SWEEPS.items():
        wall_s(options, "serial")  # compiles, if that has to be done
        times: dict[str, list[float]] = {"serial": [], "processes": []}
        for _ in range(REPEATS):
            for executor, seconds in times.items():
                seconds.append(wall_s(options, executor))
        alone, shared = (min(seconds) for seconds in times.values())
        print(
            f"{name}: {alone:.1f} s in one process, {shared:.1f} s in {os.cpu_count()}: "
            f"{alone / shared:.2f} x (least of {REPEATS}, load {os.getloadavg()[0]:.1f})"
        )


if __name__ == "__main__":
    main()
