"""Jobs and their files: what is saved is what is loaded, and a bad file is told where it is bad."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from bytelane.errors import InputError, JobFileError
from bytelane.job import Job, Layer, Tensor, load, save

SUFFIXES = (".toml", ".json")
each_format = pytest.mark.parametrize("suffix", SUFFIXES)

names = st.text(min_size=1, max_size=8)
seconds = st.floats(0, 1e6)
layers = st.builds(Layer, names, seconds, seconds, seconds)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any valid job: tied tensors, several tensors a layer, layers without any."""
    rows = draw(st.lists(layers, min_size=1, max_size=6))
    used = st.sets(st.integers(0, len(rows) - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    tensors = st.builds(Tensor, st.text(max_size=8), st.integers(1, 2**50), used)
    return Job(draw(names), tuple(rows), tuple(draw(st.lists(tensors, max_size=6))), draw(seconds))


def write(folder: Path, suffix: str, document: dict[str, Any]) -> Path:
    path = folder / f"job{suffix}"
    path.write_text(json.dumps(document) if suffix == ".json" else tomli_w.dumps(document))
    return path


def five_layers(**third: Any) -> dict[str, Any]:
    """A good document, but for what layer 3 is given; None takes a field away."""
    rows: list[dict[str, Any]] = [{"forward_ms": 1, "backward_ms": 2} for _ in range(5)]
    rows[3] = {key: value for key, value in (rows[3] | third).items() if value is not None}
    return {"name": "five", "layers": rows}


def complaint(path: Path) -> str:
    """What the user reads; the file is always named, once and first."""
    with pytest.raises(JobFileError) as refusal:
        load(path)
    message = str(refusal.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


# A job


def test_an_iteration_is_all_layers_and_what_is_outside() -> None:
    job = Job("a", (Layer("x", 1, 2, 4), Layer("y", 8, 16)), (), outside_s=32)
    assert job.compute_s == 63


def test_a_tied_tensor_is_complete_and_needed_at_its_first_layer() -> None:
    tied = Tensor("tied", 4, (1, 2))
    assert (tied.complete_after, tied.needed_by) == (1, 1)


def test_a_jobs_bytes_are_those_of_its_tensors() -> None:
    rows = tuple(Layer(name, 1, 1) for name in "abc")
    job = Job("a", rows, (Tensor("tied", 4, (0, 2)), Tensor("b", 8, (1,)), Tensor("c", 16, (2,))))
    assert job.total_bytes == 28


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_time_is_finite_and_not_negative(wrong: float) -> None:
    for field in ("forward_s", "backward_s", "update_s"):
        with pytest.raises(InputError, match=f"{field} of layer 'x' is {wrong}"):
            Layer(**{"name": "x", "forward_s": 0.0, "backward_s": 0.0, field: wrong})
    with pytest.raises(InputError, match=f"outside_s is {wrong}"):
        Job("a", (Layer("x", 1, 1),), (), wrong)


def test_a_tensor_has_bytes_and_layers_in_rising_order() -> None:
    for size, used, why in [(0, (0,), "0 bytes"), (4, (), "no layer"), (4, (1, 1), "must rise")]:
        with pytest.raises(InputError, match=f"'w'.* {why}"):
            Tensor("w", size, used)


def test_a_job_has_layers_and_its_tensors_name_only_those() -> None:
    with pytest.raises(InputError, match="job 'a' has no layers"):
        Job("a", (), ())
    with pytest.raises(InputError, match=r"'w' names layers \[0, 2\], .* numbered 0 to 1"):
        Job("a", (Layer("x", 1, 1), Layer("y", 1, 1)), (Tensor("w", 4, (0, 2)),))


# Its file


@each_format
@given(job=jobs())
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, job: Job
) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip{suffix}"
    save(job, path)
    loaded = load(path)
    assert (loaded.name, loaded.tensors) == (job.name, job.tensors)
    assert [layer.name for layer in loaded.layers] == [layer.name for layer in job.layers]
    for field in ("forward_s", "backward_s", "update_s"):
        assert [getattr(layer, field) for layer in loaded.layers] == pytest.approx(
            [getattr(layer, field) for layer in job.layers], rel=1e-12, abs=0
        )
    assert loaded.outside_s == pytest.approx(job.outside_s, rel=1e-12, abs=0)


@each_format
def test_an_empty_layer_name_is_saved_too(tmp_path: Path, suffix: str) -> None:
    job = Job("a", (Layer("", 1, 1),), ())
    save(job, tmp_path / f"job{suffix}")
    assert load(tmp_path / f"job{suffix}") == job


@each_format
def test_a_layer_carries_its_tensor_and_every_quantity_may_have_a_unit(
    tmp_path: Path, suffix: str
) -> None:
    rows = [
        {"name": "conv", "forward_ms": "300us", "backward_ms": 0.6, "bytes": "4MiB"},
        {"forward_ms": 1, "backward_ms": "2ms", "update_ms": "0", "bytes": 0},
        {"forward_ms": 0, "backward_ms": 0, "bytes": 12},
    ]
    tied = {"name": "tied", "bytes": "1kB", "layers": [2, 0, 2]}
    document = {"name": "mine", "layers": rows, "outside_ms": "1s", "tensors": [tied]}
    assert load(write(tmp_path, suffix, document)) == Job(
        "mine",
        (Layer("conv", 3e-4, 6e-4), Layer("layer1", 1e-3, 2e-3), Layer("layer2", 0, 0)),
        (Tensor("conv", 2**22, (0,)), Tensor("layer2", 12, (2,)), Tensor("tied", 1000, (0, 2))),
        outside_s=1.0,
    )


@each_format
def test_the_shorthand_is_written_where_it_says_the_whole_truth(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"job{suffix}"
    rows = (Layer("a", 1, 1), Layer("b", 1, 1))
    own, tied = (Tensor("a", 4, (0,)), Tensor("b", 8, (1,))), (Tensor("a", 4, (0, 1)),)
    save(Job("short", rows, own), path)
    assert "tensors" not in path.read_text()
    save(Job("long", rows, tied), path)
    assert "tensors" in path.read_text()


@each_format
def test_a_hundred_thousand_layers(tmp_path: Path, suffix: str) -> None:
    rows = tuple(Layer(f"layer{i}", 0.25, 0.5) for i in range(100_000))
    job = Job("long", rows, tuple(Tensor(a.name, i + 1, (i,)) for i, a in enumerate(rows)))
    save(job, tmp_path / f"job{suffix}")
    assert load(tmp_path / f"job{suffix}") == job


# A bad file


@each_format
@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("forward_ms", -1, "finite and not negative"),
        ("backward_ms", "-3us", "finite and not negative"),
        ("update_ms", "300", "has no unit"),
        ("forward_ms", True, ""),
        ("backward_ms", [1], ""),
        ("bytes", -1, "cannot be negative"),
        ("bytes", 1.5, ""),
        ("bytes", "4mib", "did you mean MiB?"),
        ("name", 3, ""),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    tmp_path: Path, suffix: str, field: str, value: Any, why: str
) -> None:
    message = complaint(write(tmp_path, suffix, five_layers(**{field: value})))
    assert message.startswith(f"layers[3].{field}: ")
    assert why in message


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_toml_can_say_nan_and_inf_but_a_time_cannot_be_either(tmp_path: Path, value: float) -> None:
    message = complaint(write(tmp_path, ".toml", five_layers(forward_ms=value)))
    assert message == f"layers[3].forward_ms: is {value}; a time must be finite and not negative"


def test_a_json_number_beyond_all_bounds_is_named_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, ".json", five_layers(forward_ms=12345))
    path.write_text(path.read_text().replace("12345", "1e999"))
    assert complaint(path).startswith("layers[3].forward_ms: ")


@each_format
@pytest.mark.parametrize(
    ("document", "place", "field"),
    [
        (five_layers(forward_ms=None), "layers[3]", "forward_ms"),
        (five_layers(forwrad_ms=1), "layers[3]", "forwrad_ms"),
        ({"layers": five_layers()["layers"]}, "", "name"),
        (five_layers() | {"colour": 1}, "", "colour"),
        (five_layers() | {"outside_ms": -1}, "outside_ms: ", ""),
        (five_layers() | {"layers": []}, "layers: is empty", ""),
        (five_layers() | {"layers": 3}, "layers: ", ""),
    ],
)
def test_missing_and_unknown_fields_are_named(
    tmp_path: Path, suffix: str, document: dict[str, Any], place: str, field: str
) -> None:
    message = complaint(write(tmp_path, suffix, document))
    assert message.startswith(place)
    assert field in message


@each_format
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bytes": 0}, "bytes: is 0; leave the tensor out"),
        ({"bytes": "1.5B"}, "bytes: '1.5B' is not a whole number of bytes"),
        ({"layers": []}, "layers: is empty; name the layers"),
        ({"layers": [0, 5]}, "layers: there is no layer 5; the layers are numbered 0 to 4"),
        ({"layers": [-1]}, "layers: there is no layer -1; the layers are numbered 0 to 4"),
        ({"layers": ["conv"]}, "layers[0]: "),
    ],
)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, suffix: str, changed: dict[str, Any], message: str
) -> None:
    good = {"name": "w", "bytes": 4, "layers": [0]}
    document = five_layers() | {"tensors": [good, good | changed]}
    assert complaint(write(tmp_path, suffix, document)).startswith(f"tensors[1].{message}")


@each_format
@given(content=st.binary() | st.text().map(str.encode))
@example(b"")
@example(b"[1, 2]")
@example(b"\x00\xff\xfe garbage")
def test_bytes_that_are_no_job_are_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(content)
    assert complaint(path)


@each_format
def test_nesting_without_end_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"job{suffix}"
    path.write_text(("layers = " if suffix == ".toml" else "") + 100_000 * "[")
    assert complaint(path)


def test_a_syntax_error_is_given_with_its_line_or_byte(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('name = "a"\n\nlayers = = 3\n')
    assert "not valid TOML" in complaint(path)
    assert "line 3" in complaint(path)
    path = tmp_path / "job.json"
    path.write_text('{"name": oops}')
    assert "not valid JSON" in complaint(path)
    assert "line 1, column 10" in complaint(path)


@each_format
def test_no_file_or_a_folder_is_refused(tmp_path: Path, suffix: str) -> None:
    assert complaint(tmp_path / f"absent{suffix}") == "there is no such file"
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    assert "directory" in complaint(folder)


@pytest.mark.parametrize("name", ["job.yaml", "job", "job.toml.bak", ""])
def test_other_suffixes_are_refused_in_both_directions(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobFileError, match=r"ends in \.toml or \.json"):
        save(Job("a", (Layer("x", 1, 1),), ()), tmp_path / name)
    with pytest.raises(JobFileError, match=r"ends in \.toml or \.json"):
        load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_suffix_is_one_sentence(tmp_path: Path) -> None:
    assert complaint(tmp_path / "job.yaml") == "a job file ends in .toml or .json"


# What reads what


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_what_a_layer_reads_is_kept(tmp_path: Path, suffix: str) -> None:
    layers = (Layer("a", 1, 1), Layer("b", 1, 1), Layer("c", 1, 1, after=(0, 1)))
    save(Job("graph", layers, ()), tmp_path / f"job{suffix}")
    assert [layer.after for layer in load(tmp_path / f"job{suffix}").layers] == [None, None, (0, 1)]


def test_a_layer_reads_only_earlier_ones(tmp_path: Path) -> None:
    path = write(tmp_path, ".toml", five_layers(after=[4]))
    assert complaint(path) == "layers[3].after: layer 4 does not come before layer 3"
