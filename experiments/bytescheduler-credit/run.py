"""What the credit does: four tensors, the last one the most urgent (lecture, credit diagram).

P1 to P4 become ready one after another while P1 is being sent. The real scheduler decides; a link
that carries one at a time and a delay until the end is known stand in for the network.
"""

import heapq
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Row, new_figure, out_folder, print_table, save_csv, save_figure

from bytelane.cluster import Cluster, Link
from bytelane.core import Knobs, Scheduler, make_policy
from bytelane.job import Job, Layer, Tensor

NAMES = ("P4", "P3", "P2", "P1")  # by layer: P4 is needed first, P1 is ready first
BYTES = 100
SEND_S, KNOWN_AFTER_S, READY_EVERY_S = 1.0, 0.5, 0.2


class Sent(NamedTuple):
    """When a tensor was handed to the link, was on it, and was known to be over."""

    name: str
    launched_s: float
    start_s: float
    end_s: float
    known_s: float


def drive(credit_parts: int) -> list[Sent]:
    """Feed the scheduler the events of a serial link; return what it sent, in order."""
    job = Job(
        "four tensors",
        tuple(Layer(name, 1.0, READY_EVERY_S) for name in NAMES),
        tuple(Tensor(name, BYTES, (layer,)) for layer, name in enumerate(NAMES)),
    )
    cluster = Cluster.star(2, Link(BYTES / SEND_S))
    policy = make_policy("bytescheduler", job, cluster, Knobs(BYTES, credit_parts * BYTES))
    scheduler = Scheduler.of_policy(policy, job)
    # At the same moment an end is told before a beginning.
    events = [(READY_EVERY_S * i, 1, NAMES.index(f"P{i + 1}")) for i in range(len(NAMES))]
    heapq.heapify(events)
    link_free = 0.0
    sent = []
    while events:
        now, is_ready, which = heapq.heappop(events)
        tell = scheduler.notify_ready if is_ready else scheduler.notify_finish
        for start in tell(which, now):
            begin = max(now, link_free)
            link_free = begin + SEND_S
            known = link_free + KNOWN_AFTER_S
            sent.append(Sent(NAMES[start.operation], now, begin, link_free, known))
            heapq.heappush(events, (known, 0, start.operation))
    assert scheduler.synchronised
    return sent


def order(credit_parts: int) -> list[str]:
    return [one.name for one in drive(credit_parts)]


def draw(path: Path) -> None:
    figure, (axes,) = new_figure(1, 1, 9, 2.6)
    colours = dict(zip(NAMES, ("#cc503e", "#f2a68d", "#8ecae6", "#1d6996"), strict=True))
    for row, credit in enumerate((1, 2)):
        for one in drive(credit):
            axes.broken_barh([(one.start_s, SEND_S)], (row, 0.7), facecolors=colours[one.name])
            ink = "white" if one.name in ("P1", "P4") else "black"
            place = (one.start_s + SEND_S / 2, row + 0.35)
            axes.text(*place, one.name, ha="center", va="center", color=ink)
            axes.plot([one.end_s, one.known_s], [row + 0.78] * 2, color="#777777", lw=2)
    for i in range(len(NAMES)):
        axes.annotate(
            f"P{i + 1}",
            (READY_EVERY_S * i, -0.08),
            (READY_EVERY_S * i, -0.55),
            ha="center",
            fontsize=8,
            arrowprops={"arrowstyle": "->"},
        )
    axes.text(0.95, -0.4, "ready;  grey: until the end is known", fontsize=8)
    axes.set_yticks([0.35, 1.35], ["credit 1 (stop-and-wait)", "credit 2"])
    axes.set_ylim(1.9, -0.7)
    axes.set_xlabel("time (s)")
    save_figure(figure, path)


def main() -> None:
    out = out_folder(__file__, "Replay the lecture's credit diagram with the real scheduler.")
    rows: list[Row] = [
        {
            "credit (tensors)": credit,
            "tensor": one.name,
            "launched (s)": one.launched_s,
            "on the link (s)": one.start_s,
            "last byte (s)": one.end_s,
            "known (s)": one.known_s,
        }
        for credit in (1, 2)
        for one in drive(credit)
    ]
    print_table(rows, "Four tensors, P4 the most urgent")
    summary: list[Row] = []
    for credit in (1, 2, 3, 4):
        sent = drive(credit)
        busy = len(sent) * SEND_S / sent[-1].end_s
        urgent = next(one.known_s for one in sent if one.name == "P4")
        summary.append(
            {
                "credit (tensors)": credit,
                "order": " ".join(one.name for one in sent),
                "P4 known (s)": urgent,
                "all known (s)": sent[-1].known_s,
                "link in use (%)": 100 * busy,
            }
        )
    print_table(summary, "What the credit costs and gives")
    print(
        "\n  Published: stop-and-wait leaves the link idle; a larger credit uses it better and\n"
        "  lets what is urgent through later. Both come out. (The slide's drawing is lost in our\n"
        "  copy, so its order of boxes cannot be compared; this order follows from its rule.)\n"
    )
    save_csv(rows, out / "credit.csv")
    draw(out / "credit.png")


if __name__ == "__main__":
    main()
