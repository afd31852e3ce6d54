"""Where ResNet-50 spends its time and has its weights (thesis, Figures 3.4 to 3.7).

The thesis measured on a P100 (3.4, 3.5) and, with the convolutions taken out, on a CPU (3.6, 3.7).
Ours is one CPU core, two images of 224 x 224; so shapes can be compared, not times. As there, a
"layer" is a call of any module, also of a container: 183 of them. It had no hooks for backward and
divided its total up by another profiler's figures; here every gradient is timed.
"""

import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from common import Row, new_figure, out_folder, print_table, save_csv, save_figure
from resnet50 import NoConv2d, ResNet50
from torch.utils.data import DataLoader, Dataset

from bytelane.measure import Profile
from bytelane.measure.loop import profile_model

IMAGE, BATCH, ITERATIONS = 224, 2, 5
# As the thesis divides its 180 layers: the first 80, 70 in the middle, the last 30.
RANGES = {"first 80": (0, 80), "middle 73": (80, 153), "last 30": (153, 183)}
# Figure 3.5, first and second iteration, from its time stamps.
PUBLISHED_MS = {
    "load": (88.02, 91.80),
    "copy": (2.82, 2.52),
    "forward": (69.66, 68.47),
    "backward": (139.25, 141.00),
}
BLUE, RED = "#1d6996", "#cc503e"
COLOURS = {
    "load": "#999999",
    "copy": "#73398c",
    "forward": "#8ecae6",
    "loss": "#555555",
    "backward": "#5b9bbd",
    "update": "#edad08",
    "other": "#cccccc",
}


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Photographs that are noise: cropped, mirrored and normalised like others."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = torch.randint(0, 256, (3, IMAGE + 32, IMAGE + 32), dtype=torch.uint8)
        x, y = torch.randint(0, 32, (2,)).tolist()
        crop = pixels[:, x : x + IMAGE, y : y + IMAGE].flip(2)
        return (crop.float() / 255 - 0.45) / 0.225, index


def profile(conv: type[torch.nn.Conv2d] = torch.nn.Conv2d) -> Profile:
    model = ResNet50(conv)
    return profile_model(
        model,
        DataLoader(Images(), batch_size=BATCH),
        torch.nn.functional.cross_entropy,
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        iterations=ITERATIONS,
        warmup=2,
        every_module=True,
    )


def layer_rows(found: Profile) -> list[dict[str, str | int | float]]:
    """Return a row a layer: its forward and backward time and its weights."""
    weights = [0] * len(found.layers)
    for tensor in found.job.tensors:
        weights[tensor.complete_after] += tensor.bytes
    return [
        {
            "layer": number,
            "module": layer.name,
            "weights (MB)": weight / 1e6,
            "forward (ms)": layer.forward.median_s * 1e3,
            "backward (ms)": layer.backward.median_s * 1e3,
        }
        for number, (layer, weight) in enumerate(zip(found.layers[:-1], weights, strict=False))
    ]


def mean_of(rows: Sequence[Row], title: str, part: str) -> float:
    """Return the mean over a range of layers."""
    begin, end = RANGES[part]
    return sum(float(row[title]) for row in rows[begin:end]) / (end - begin)


def ratio(found: Profile) -> float:
    """Return how many times as long as forward the backward pass takes."""
    return found.stages["backward"].median_s / found.stages["forward"].median_s


def stage_rows(found: Profile) -> list[Row]:
    """Return Figure 3.5 beside ours."""
    published = PUBLISHED_MS | {"iteration": (299.86, 303.89)}
    times = {**found.stages, "iteration": found.iteration}
    return [
        {
            "stage": stage,
            "published (ms)": "  ".join(f"{ms:6.2f}" for ms in published.get(stage, ())),
            "published (%)": _percent(stage, published),
            "ours (ms)": times[stage].median_s * 1e3,
            "spread (ms)": times[stage].spread_s * 1e3,
            "ours (%)": 100 * times[stage].median_s / found.iteration.median_s,
        }
        for stage in times
    ]


def _percent(stage: str, published: dict[str, tuple[float, float]]) -> str:
    if stage not in published:
        return ""
    return f"{100 * published[stage][0] / published['iteration'][0]:.0f}"


def beside_published(real: Profile, cheap: Profile) -> list[Row]:
    """Return each statement beside what came out."""
    rows, bare = layer_rows(real), layer_rows(cheap)
    weight = [mean_of(rows, "weights (MB)", part) for part in RANGES]
    forward = [mean_of(rows, "forward (ms)", part) for part in RANGES]
    backward = [mean_of(rows, "backward (ms)", part) for part in RANGES]
    bare_backward = [mean_of(bare, "backward (ms)", part) for part in RANGES]
    last = sum(float(row["weights (MB)"]) for row in rows[153:]) / (real.job.total_bytes / 1e6)
    saved = 1 - cheap.iteration.median_s / real.iteration.median_s
    statements = [
        (
            "3.4 weights a layer, first : middle : last (last = 1)",
            "little : 0.2 : 1",
            _to_last(weight),
        ),
        ("3.4 share of the weights in the last 30 layers (%)", "most", f"{100 * last:.0f}"),
        ("3.4 forward a layer, first : middle : last", "falls", _to_last(forward)),
        ("3.5 forward : backward", "1 : 2", f"1 : {ratio(real):.2f}"),
        ("3.5 backward, of the iteration (%)", "33 (text), 46 (table)", _share(real, "backward")),
        ("3.6 less time by taking convolutions out (%)", "40 (60 expected)", f"{100 * saved:.0f}"),
        ("3.6 backward a layer, as measured", "", _to_last(backward)),
        ("3.6 the same without convolutions", "less in low layers", _to_last(bare_backward)),
        ("3.7 forward : backward without convolutions", "0.9 : 2.1 s", f"1 : {ratio(cheap):.2f}"),
    ]
    return [{"what (unit)": w, "published": p, "ours": o} for w, p, o in statements]


def _to_last(values: Sequence[float]) -> str:
    return " : ".join(f"{value / values[-1]:.2f}" for value in values)


def _share(found: Profile, stage: str) -> str:
    return f"{100 * found.stages[stage].median_s / found.iteration.median_s:.0f}"


def draw(real: Profile, cheap: Profile, path: Path) -> None:
    figure, (layers, stages, both_ways, total) = new_figure(2, 2, 12, 8)
    rows, bare = layer_rows(real), layer_rows(cheap)
    number = range(len(rows))
    layers.plot(number, [row["forward (ms)"] for row in rows], color=BLUE, lw=0.9)
    layers.set(title="3.4  forward and weights", xlabel="layer", ylabel="forward (ms)")
    weights = layers.twinx()
    weights.plot(number, [row["weights (MB)"] for row in rows], color=RED, lw=0.9)
    weights.set_ylabel("weights (MB)", color=RED)
    layers.yaxis.label.set_color(BLUE)

    published = [sum(pair) / 2 for pair in PUBLISHED_MS.values()]
    for y, times in ((1, dict(zip(PUBLISHED_MS, published, strict=True))), (0, _stage_ms(real))):
        whole, left = sum(times.values()), 0.0
        for stage, ms in times.items():
            share = 100 * ms / whole
            stages.barh(y, share, left=left, color=COLOURS[stage], edgecolor="white", height=0.5)
            if share > 4:
                stages.text(
                    left + share / 2, y, f"{stage}\n{share:.0f} %", ha="center", va="center"
                )
            left += share
    stages.set_yticks([0, 1], ["ours, CPU", "P100"])
    stages.set(title="3.5  stages of an iteration", xlabel="share (%)")

    for one, colour, name in ((rows, BLUE, "as it is"), (bare, RED, "without convolutions")):
        times = [float(row["forward (ms)"]) for row in one]
        back = [float(row["backward (ms)"]) for row in reversed(one)]
        both_ways.plot(range(2 * len(one)), times + back, color=colour, lw=0.9, label=name)
        ahead = list(accumulate(times))
        total.plot(ahead, number, color=colour, label=name)
        behind = [ahead[-1] + ms for ms in accumulate(back)]
        total.plot(behind, list(reversed(number)), color=colour, ls="--")
    both_ways.axvline(len(rows), color="grey", lw=0.7)
    both_ways.set_xticks([0, 90, 183, 276, 365], ["0", "90", "183", "90", "0"])
    both_ways.set(title="3.6  time a layer", xlabel="layer: forward, then backward", ylabel="ms")
    total.set(title="3.7  accumulated: forward, backward dashed", xlabel="ms", ylabel="layer")
    for axes in (both_ways, total):
        axes.legend(frameon=False)
    save_figure(figure, path)


def _stage_ms(found: Profile) -> dict[str, float]:
    return {stage: time.median_s * 1e3 for stage, time in found.stages.items()}


def main() -> None:
    out = out_folder(__file__, "Reproduce Figures 3.4 to 3.7 of the thesis.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    real, cheap = profile(), profile(NoConv2d)
    torch.set_num_threads(threads)
    print_table(stage_rows(real), f"Figure 3.5: an iteration, median of {real.counted}")
    print_table(beside_published(real, cheap), "Published beside ours")
    print(
        "\n  Table 3.1 compares a batch of 128 (P100) with one of 256 (T4): 0.85 s beside 0.90 s.\n"
        "  For the same batch that is 1.9 times as long on the P100, not the 1.06 of the table.\n"
    )
    for note in real.notes:
        print(f"  note: {note}")
    save_csv(layer_rows(real), out / "layers.csv")
    save_csv(layer_rows(cheap), out / "layers-without-convolutions.csv")
    draw(real, cheap, out / "figures-3-4-to-3-7.png")


if __name__ == "__main__":
    main()
