"""CPU time of the simulator on one core, and how much compiling is worth.

python benchmarks/simulator.py
"""

import platform
import time
from collections.abc import Callable
from statistics import median

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy
from bytelane.job import Job, zoo
from bytelane.sim import evaluate

CLUSTER = Cluster(8, Link(1.25e9, 20e-6, 100e-6))
PARTITIONS = [2**k for k in range(16, 27)]
PARTS_IN_FLIGHT = (1, 2, 3, 4, 6, 8, 12, 16)


def cpu_ms(work: Callable[[], object], repeats: int = 15) -> tuple[float, float]:
    """Median and least CPU time of one call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return median(times), min(times)


def one(job: Job, engine: str = "compiled") -> float:
    policy = make_policy("bytescheduler", job, CLUSTER, Knobs(2**22, 2**23))
    return evaluate(job, CLUSTER, policy, engine)  # type: ignore[arg-type]


def grid(job: Job) -> float:
    return min(
        evaluate(job, CLUSTER, make_policy("bytescheduler", job, CLUSTER, Knobs(part, part * k)))
        for part in PARTITIONS
        for k in PARTS_IN_FLIGHT
    )


def main() -> None:
    resnet, vgg = zoo.make("resnet50"), zoo.make("vgg16")
    one(resnet)  # loads or compiles
    settings = len(PARTITIONS) * len(PARTS_IN_FLIGHT)
    rows = [
        ("resnet50, bytescheduler, 4 MiB, one evaluation", cpu_ms(lambda: one(resnet), 200), 0.3),
        (f"resnet50, {settings} settings", cpu_ms(lambda: grid(resnet)), 30),
        (f"vgg16, {settings} settings", cpu_ms(lambda: grid(vgg)), 60),
    ]
    for name, (middle, least), wanted in rows:
        print(f"{name:<50} {middle:8.2f} ms (least {least:.2f}; wanted {wanted} ms)")
    slow, fast = cpu_ms(lambda: one(resnet, "interpreted"), 5)[0], rows[0][1][0]
    print(f"{'compiled against interpreted, whole evaluation':<50} {slow / fast:8.0f} x")
    print(f"{platform.platform()}, Python {platform.python_version()}, CPU time of one thread")


if __name__ == "__main__":
    main()
