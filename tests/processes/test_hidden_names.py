"""Train with a torch that has taken private names away, by a fallback; or refuse to."""

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

import bytelane
from bytelane.errors import NotSupported
from bytelane.foreign.torch_names import NAMES
from bytelane.runtime.torch import prepare
from lacking import hide
from ranks import Pool
from training import equal, loss_of, make, trained_by_ddp, trained_by_us

KNOBS: dict[str, Any] = {"policy": "bytescheduler", "partition": "1KiB", "credit": "2KiB"}
REPLACED = [name.path for name in NAMES if name.has_fallback and "_hooks" not in name.path]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """Two processes in which every name is hidden that has a fallback, but for hooks."""
    with Pool(2) as pool:
        pool.run(hide, paths=REPLACED)
        yield pool


def same_as_ddp(rank: int, **case: Any) -> tuple[bool, str]:
    said = io.StringIO()
    with redirect_stdout(said):
        ours = trained_by_us(rank, prepare=KNOBS, **case)
    return equal(ours, trained_by_ddp(rank, **case)), said.getvalue()


@pytest.mark.parametrize("model", ["chain", "tied"])
def test_without_names_that_have_a_fallback_weights_equal_ddp(ranks: Pool, model: str) -> None:
    (same, said), (same_too, _) = ranks.run(same_as_ddp, model=model, optimizer="adamw")
    assert same
    assert same_too
    if model == "chain":  # said once in a process
        for path in REPLACED:
            assert f"has no {path}: " in said


def refused(rank: int) -> str:
    prepare._require_names.cache_clear()
    net, opt = make()
    with pytest.raises(NotSupported) as caught:
        bytelane.prepare(net, opt)
    loss_of(net, rank, 0).backward()  # the model is as it was
    return str(caught.value)


def test_without_a_name_that_nothing_replaces_prepare_says_so(ranks: Pool) -> None:
    ranks.run(hide, paths=["torch._C._ForceDispatchKeyGuard"])
    for sentence in ranks.run(refused):
        assert "has no torch._C._ForceDispatchKeyGuard, which bytelane needs to make " in sentence
        assert sentence.endswith("; use torch 2.9 to 2.13")
