"""Job files: read and write jobs as TOML or JSON that can be written by hand.

The file has milliseconds and lets a layer carry its tensor as ``bytes = ...``; a :class:`Job` has
only seconds and tensors. Every error message names the file and the field.
"""

import json
import math
from pathlib import Path

import msgspec

from bytelane.errors import InputError, JobFileError
from bytelane.files import parse_toml, read_text
from bytelane.job.job import Job, Layer, Tensor
from bytelane.units import LONGEST_S, parse_bytes, parse_seconds


class _LayerEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    forward_ms: float | str
    backward_ms: float | str
    name: str | None = None
    update_ms: float | str = 0.0
    bytes: int | str = 0
    after: list[int] | None = None


class _TensorEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    bytes: int | str
    layers: list[int]


class _JobFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    layers: list[_LayerEntry]
    outside_ms: float | str = 0.0
    tensors: list[_TensorEntry] = []


def load(path: str | Path) -> Job:
    """Read a job from a ``.toml`` or ``.json`` file."""
    path = Path(path)
    try:
        return _to_job(_parse(path))
    except JobFileError:
        raise
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JobFileError(f"{path}: not valid JSON: {error.msg} (at {where})") from None
    except msgspec.ValidationError as error:
        raise JobFileError(f"{path}: {_in_plain_words(str(error))}") from None
    except RecursionError:
        raise JobFileError(f"{path}: is nested too deeply to be a job") from None
    except InputError as error:
        text = str(error)  # an unreadable file is named already
        raise JobFileError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise JobFileError(f"{path}: {error}") from None


def save(job: Job, path: str | Path) -> None:
    """Write a job to a ``.toml`` or ``.json`` file that :func:`load` reads back."""
    path = Path(path)
    entry = _from_job(job)
    if path.suffix == ".json":
        path.write_bytes(msgspec.json.format(msgspec.json.encode(entry)))
    elif path.suffix == ".toml":
        path.write_bytes(msgspec.toml.encode(entry))
    else:
        raise JobFileError(f"{path}: a job file ends in .toml or .json")


def _parse(path: Path) -> _JobFile:
    if path.suffix not in (".json", ".toml"):
        raise JobFileError(f"{path}: a job file ends in .toml or .json")
    text = read_text(path)
    if not text.strip():
        raise JobFileError(f"{path}: the file is empty")
    if path.suffix == ".toml":
        return msgspec.convert(parse_toml(text), _JobFile)
    try:
        return msgspec.json.decode(text, type=_JobFile)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        json.loads(text)  # knows the line of a syntax error
        raise JobFileError(f"{path}: not valid JSON") from None


def _to_job(file: _JobFile) -> Job:
    if not file.layers:
        raise InputError("layers: is empty; a job needs at least one layer")
    layers = []
    tensors = []
    for i, entry in enumerate(file.layers):
        where = f"layers[{i}]"
        name = f"layer{i}" if entry.name is None else entry.name
        layers.append(
            Layer(
                name,
                _seconds(entry.forward_ms, f"{where}.forward_ms"),
                _seconds(entry.backward_ms, f"{where}.backward_ms"),
                _seconds(entry.update_ms, f"{where}.update_ms"),
                _earlier(entry.after, i, f"{where}.after"),
            )
        )
        if size := _size(entry.bytes, f"{where}.bytes"):
            tensors.append(Tensor(name, size, (i,)))
    for i, extra in enumerate(file.tensors):
        tensors.append(_tensor(extra, f"tensors[{i}]", len(layers)))
    return Job(file.name, tuple(layers), tuple(tensors), _seconds(file.outside_ms, "outside_ms"))


def _earlier(after: list[int] | None, index: int, where: str) -> tuple[int, ...] | None:
    for layer in after or ():
        if not 0 <= layer < index:
            raise InputError(f"{where}: layer {layer} does not come before layer {index}")
    return None if after is None else tuple(sorted(set(after)))


def _tensor(entry: _TensorEntry, where: str, layer_count: int) -> Tensor:
    size = _size(entry.bytes, f"{where}.bytes")
    if size == 0:
        raise InputError(f"{where}.bytes: is 0; leave the tensor out instead")
    if not entry.layers:
        raise InputError(f"{where}.layers: is empty; name the layers that use the tensor")
    for layer in entry.layers:
        if not 0 <= layer < layer_count:
            raise InputError(
                f"{where}.layers: there is no layer {layer}; "
                f"the layers are numbered 0 to {layer_count - 1}"
            )
    return Tensor(entry.name, size, tuple(sorted(set(entry.layers))))


def _seconds(value: float | str, where: str) -> float:
    """Take a number as milliseconds and a string as a time with its unit."""
    try:
        seconds = parse_seconds(value) if isinstance(value, str) else value / 1000
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InputError(f"{where}: is {value}; a time must be finite and not negative")
    if seconds > LONGEST_S:
        raise InputError(f"{where}: is {value}; a time must be at most {LONGEST_S:g} s")
    return seconds


def _size(value: int | str, where: str) -> int:
    try:
        size = parse_bytes(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if size < 0:
        raise InputError(f"{where}: is {value}; a size cannot be negative")
    return size


def _from_job(job: Job) -> _JobFile:
    shorthand = _shorthand(job)
    layers = [
        _LayerEntry(
            name=layer.name,
            forward_ms=layer.forward_s * 1000,
            backward_ms=layer.backward_s * 1000,
            update_ms=layer.update_s * 1000,
            bytes=shorthand.get(i, 0),
            after=None if layer.after is None else list(layer.after),
        )
        for i, layer in enumerate(job.layers)
    ]
    extra = [] if shorthand else job.tensors
    tensors = [_TensorEntry(tensor.name, tensor.bytes, list(tensor.layers)) for tensor in extra]
    return _JobFile(job.name, layers, job.outside_s * 1000, tensors)


def _shorthand(job: Job) -> dict[int, int]:
    """Return sizes by layer if the shorthand says all and keeps the tensors' order, else {}."""
    sizes = {tensor.layers[0]: tensor.bytes for tensor in job.tensors}
    said = tuple(Tensor(job.layers[i].name, sizes[i], (i,)) for i in sorted(sizes))
    return sizes if said == job.tensors else {}


_WORDS = {
    "`float | str`": "a number, or a string with its unit",
    "`int | str`": "a whole number, or a string with its unit",
    "`array`": "a list",
    "`object`": "a table",
    "`int`": "a whole number",
    "`float`": "a number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`null`": "null",
    "Object missing required field": "there is no field",
    "Object contains unknown field": "there is no use for the field",
    "Expected": "expected",
}


def _in_plain_words(message: str) -> str:
    """Turn msgspec's ``... - at `$.layers[3].forward_ms` `` into ``layers[3].forward_ms: ...``."""
    text, _, path = message.partition(" - at `$")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    place = path.rstrip("`").lstrip(".")
    return f"{place}: {text}" if place else text
