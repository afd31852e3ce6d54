"""Emulate a cluster on one machine: hosts, links of a given rate, priorities, background traffic.

::

    with Lab(4, "500Mbit", priority="htb") as lab:
        lab.check()                                   # do the links have their rate?
        background = lab.traffic(0.25, band="high")   # 25 % of every link
        lab.run(["python", "train.py"])
        background.stop().classes                     # completion times by size
"""

from bytelane.cluster import Arrival, Sizes, load_sizes
from bytelane.lab.check import Hop, Share, sweep_rates
from bytelane.lab.clean import Cleaning, Leftover, clean
from bytelane.lab.lab import Lab
from bytelane.lab.pacing import open_sockets, pace
from bytelane.lab.run import Run
from bytelane.lab.schedule import Step, load_schedule
from bytelane.lab.traffic import SizeClass, Traffic, TrafficReport
from bytelane.lab.workload import FlowRecord, Workload

__all__ = [
    "Arrival",
    "Cleaning",
    "FlowRecord",
    "Hop",
    "Lab",
    "Leftover",
    "Run",
    "Share",
    "SizeClass",
    "Sizes",
    "Step",
    "Traffic",
    "TrafficReport",
    "Workload",
    "clean",
    "load_schedule",
    "load_sizes",
    "open_sockets",
    "pace",
    "sweep_rates",
]
