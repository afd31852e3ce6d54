"""Chapter 3 of the thesis: what does not depend on the machine, as assertions."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bytelane.job import zoo
from bytelane.measure import Profile
from bytelane.measure.loop import profile_model

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def run() -> Iterator[Any]:
    before = list(sys.path)
    path = FOLDER / "thesis-figures-3-4-to-3-7" / "run.py"
    spec = importlib.util.spec_from_file_location("chapter_3", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def small(run: Any) -> Profile:
    """Figures of a small image, with convolutions that do nothing: only the order counts."""
    model = run.ResNet50(run.NoConv2d)
    batch = (torch.zeros(2, 3, 32, 32), torch.tensor([1, 2]))
    loss = torch.nn.functional.cross_entropy
    return profile_model(model, batch, loss, None, iterations=3, warmup=1, every_module=True)


def test_the_model_is_resnet_50(run: Any, small: Profile) -> None:
    model = run.ResNet50()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    known = zoo.make("resnet50")
    sizes = sorted(tensor.bytes for tensor in known.tensors)
    assert sorted(tensor.bytes for tensor in small.job.tensors) == sizes
    # Each call of any module, as the thesis counts: it speaks of 180 layers.
    assert len(small.layers) - 1 == 183


def test_no_convolution_has_the_shapes_and_gradients_of_one(run: Any) -> None:
    for stride in (1, 2):
        x = torch.randn(2, 4, 7, 7, requires_grad=True)
        real, none = (c(4, 6, 3, stride, padding=1) for c in (torch.nn.Conv2d, run.NoConv2d))
        assert none(x).shape == real(x).shape
        none(x).sum().backward()
        assert none.weight.grad.shape == real.weight.shape


def test_the_weights_have_a_heavy_tail(run: Any, small: Profile) -> None:
    rows = run.layer_rows(small)
    first, middle, last = (run.mean_of(rows, "weights (MB)", part) for part in run.RANGES)
    assert first < 0.05 * last
    assert 0.2 < middle / last < 0.3
    tail = sum(row["weights (MB)"] for row in rows[153:])
    assert tail == pytest.approx(0.55 * 102.2, rel=0.01)


def test_published_stands_beside_ours_and_the_picture_is_drawn(
    run: Any, small: Profile, tmp_path: Path
) -> None:
    rows = run.beside_published(small, small)
    assert {row["what (unit)"][:3] for row in rows} == {"3.4", "3.5", "3.6", "3.7"}
    stages = {row["stage"]: row for row in run.stage_rows(small)}
    assert stages["backward"]["published (%)"] == "46"
    assert stages["iteration"]["ours (%)"] == 100
    run.draw(small, small, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
