"""TicTac's orders for the lecture's four transfers, and what each of all 24 orders would take.

A is needed first; then B and C, independently of each other; D needs both. Published: TIC gives A,
then B and C as equals, then D; TAC gives A, C, B, D, because C is the smaller blocker. The slide
names no times, so these are ours, with C a third of B.
"""

import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import Row, new_figure, out_folder, print_table, save_csv, save_figure

from bytelane.core.tictac import tac_order, tic_order
from bytelane.job import Job, Layer, Tensor

NAMES = "ABCD"
NEEDS = ((), (0,), (0,), (1, 2))
COMPUTE_S = 2.0
TRANSFER_S = (1.0, 3.0, 1.0, 1.0)


def lecture() -> Job:
    layers = tuple(
        Layer(name.lower(), COMPUTE_S, 1.0, after=after)
        for name, after in zip(NAMES, NEEDS, strict=True)
    )
    tensors = tuple(Tensor(name, int(8 * TRANSFER_S[i]), (i,)) for i, name in enumerate(NAMES))
    return Job("lecture", layers, tensors)


def tic_groups() -> str:
    """Return TIC's order, with an equals sign between those that tie."""
    ranks = tic_order(lecture())
    tied = ["=".join(NAMES[t] for t in range(4) if ranks[t] == rank) for rank in sorted({*ranks})]
    return " ".join(tied)


def tac_sequence() -> str:
    place = tac_order(lecture(), TRANSFER_S)
    return " ".join(NAMES[t] for t in sorted(range(4), key=place.__getitem__))


def forward_s(order: Sequence[int]) -> float:
    """Return when the forward pass ends: one transfer and one computation at a time.

    What could run and has waited longest runs next. (The simulator runs layers in the order of the
    job's list, so it would make c wait for b; a framework's graph does not.)
    """
    arrived_s, clock = {}, 0.0
    for tensor in order:
        clock += TRANSFER_S[tensor]
        arrived_s[tensor] = clock
    done_s: dict[int, float] = {}
    clock = 0.0
    while len(done_s) < len(NAMES):
        can_run_s = {
            i: max([arrived_s[i], *(done_s[k] for k in NEEDS[i])])
            for i in range(len(NAMES))
            if i not in done_s and all(k in done_s for k in NEEDS[i])
        }
        nearest = min(can_run_s, key=lambda i: (can_run_s[i], i))
        clock = max(clock, can_run_s[nearest]) + COMPUTE_S
        done_s[nearest] = clock
    return clock


def all_orders() -> list[Row]:
    rows: list[Row] = [
        {"order": " ".join(NAMES[t] for t in order), "forward ends (s)": forward_s(order)}
        for order in permutations(range(4))
    ]
    return sorted(rows, key=lambda row: row["forward ends (s)"])


def draw(rows: Sequence[Row], path: Path) -> None:
    figure, (axes,) = new_figure(1, 1, 7, 5)
    seconds = [float(row["forward ends (s)"]) for row in rows]
    names = [str(row["order"]) for row in rows]
    colours = ["#cc503e" if name == tac_sequence() else "#8ecae6" for name in names]
    axes.barh(names, seconds, color=colours)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlabel("forward pass ends (s)")
    axes.set_title(f"TIC: {tic_groups()}    TAC: {tac_sequence()} (red)", loc="left", fontsize=10)
    save_figure(figure, path)


def main() -> None:
    out = out_folder(__file__, "Order the lecture's four transfers by TIC and TAC.")
    print_table(
        [
            {"policy": "TIC", "published order": "A B=C D", "our order": tic_groups()},
            {"policy": "TAC", "published order": "A C B D", "our order": tac_sequence()},
        ],
        "The order of receiving",
    )
    rows = all_orders()
    best, worst = rows[0]["forward ends (s)"], rows[-1]["forward ends (s)"]
    places = list(range(4))
    by_tac = forward_s(sorted(places, key=tac_order(lecture(), TRANSFER_S).__getitem__))
    by_tic = forward_s(sorted(places, key=tic_order(lecture()).__getitem__))
    print(
        f"\n  Forward ends after {by_tac:g} s by TAC and {by_tic:g} s by TIC (B before C);\n"
        f"  the best of all 24 orders takes {best:g} s and the worst {worst:g} s.\n"
    )
    save_csv(rows, out / "orders.csv")
    draw(rows, out / "orders.png")


if __name__ == "__main__":
    main()
