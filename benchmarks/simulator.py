"""CPU time of the simulator on one core, how it grows, and how much compiling is worth.

python benchmarks/simulator.py
"""

import math
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from statistics import median

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, make_policy
from bytelane.core.table import policy_state
from bytelane.job import Job, zoo
from bytelane.sim import evaluate, evaluate_each, kernel
from bytelane.sim.compiled import load_compiled
from bytelane.sim.engine import Engine, Run
from bytelane.sim.layout import lay_out, make_log, make_now, step_durations_s
from bytelane.sim.network.serial_layout import make_flights

CLUSTER = Cluster.star(8, Link(1.25e9, 20e-6, 100e-6))
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


def one(job: Job, engine: Engine = "compiled") -> float:
    policy = make_policy("bytescheduler", job, CLUSTER, Knobs(2**22, 2**23))
    return evaluate(job, CLUSTER, policy, engine)


def grid(job: Job) -> float:
    settings = (Knobs(part, part * k) for part in PARTITIONS for k in PARTS_IN_FLIGHT)
    policies = (make_policy("bytescheduler", job, CLUSTER, knobs) for knobs in settings)
    return min(evaluate_each(job, CLUSTER, policies))


def engine_alone_ms(job: Job, run: Run, repeats: int) -> float:
    """Median CPU time of the event loop, everything laid out before."""
    policy = make_policy("bytescheduler", job, CLUSTER, Knobs(2**22, 2**23))
    step_s = step_durations_s(job, CLUSTER, 1, None)
    times = []
    for _ in range(repeats):
        state = policy_state(policy, job)
        work, network, _ = lay_out(job, CLUSTER, policy, state, step_s)
        now, flights = make_now(job, state, work), make_flights(network, state)
        loop = partial(run, state, work, now, network, flights, make_log(state, work, 2, 0))
        times.append(cpu_ms(loop, 1)[0])
    return median(times)


def whole_ms(job: Job, engine: Engine, repeats: int) -> float:
    return cpu_ms(lambda: one(job, engine), repeats)[0]


def print_growth(job: Job) -> None:
    """One evaluation with ever more sub-tasks; n log n would make the last column constant."""
    titles = ("sub-tasks", "CPU time", "peak memory", "a sub-task", "/ log2 n")
    print("\n" + " ".join(f"{title:>12}" for title in titles))
    for wanted in (10**3, 10**4, 10**5, 999_000):
        part = max(1, job.total_bytes // wanted)
        policy = make_policy("bytescheduler", job, CLUSTER, Knobs(part, 2 * part))
        count = policy.cut(job).operation_count
        ms = cpu_ms(lambda p=policy: evaluate(job, CLUSTER, p), 5)[0]  # type: ignore[misc]
        tracemalloc.start()
        evaluate(job, CLUSTER, policy)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        each = 1e6 * ms / count
        print(
            f"{count:>12} {ms:>9.2f} ms {peak / 1e6:>9.1f} MB {each:>9.0f} ns "
            f"{each / math.log2(count):>9.1f} ns"
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
    compiled: Run = load_compiled().run
    for job in (resnet, vgg):
        loop = engine_alone_ms(job, kernel.run, 5) / engine_alone_ms(job, compiled, 100)
        whole = whole_ms(job, "interpreted", 5) / whole_ms(job, "compiled", 100)
        print(f"{job.name}, compiled against interpreted: the engine {loop:.0f} x (wanted 100 x),")
        print(f"    with laying out in Python, which both share, {whole:.0f} x")
    print_growth(vgg)
    machine = f"{platform.platform()}, Python {platform.python_version()}"
    print(f"{machine}, CPU time of one thread, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
