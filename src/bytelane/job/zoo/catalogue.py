"""The zoo's models by name, and how to make the job of one on an accelerator."""

from collections.abc import Callable, Mapping

import msgspec

from bytelane.errors import InputError
from bytelane.job.job import Job, Layer, Tensor
from bytelane.job.zoo import convolutional, inception, thesis, transformers, yolo
from bytelane.job.zoo.accelerator import Accelerator, find_accelerator
from bytelane.job.zoo.lookup import find
from bytelane.job.zoo.network import Network

_LARGEST_BATCH = 2**30

_NETWORKS: Mapping[str, Callable[[], Network]] = {
    "alexnet": convolutional.alexnet,
    "vgg16": convolutional.vgg16,
    "vgg19": convolutional.vgg19,
    "resnet50": convolutional.resnet50,
    "resnet152": convolutional.resnet152,
    "densenet121": convolutional.densenet121,
    "inception-v3": inception.inception_v3,
    "yolov3": yolo.yolov3,
    "bert-large": transformers.bert_large,
    "gpt2": transformers.gpt2,
    "transformer-base": transformers.transformer_base,
}
_SHAPES: Mapping[str, Callable[..., Job]] = {
    "thesis-4": thesis.thesis_4,
    "thesis-5": thesis.thesis_5,
}
_MODELS = {**_NETWORKS, **_SHAPES}


class Summary(msgspec.Struct, frozen=True):
    """A model in one line of a table. A shape without an architecture has no counts."""

    name: str
    layers: int
    tensors: int
    gradient_bytes: int
    """In single precision."""
    parameters: int | None = None
    forward_gflops: float | None = None
    """Per sample; a multiplication and an addition are two."""
    sample: str | None = None


def names() -> tuple[str, ...]:
    """Return all names, the architectures first."""
    return tuple(_MODELS)


def make(
    name: str,
    *,
    accelerator: str | None = None,
    batch: int | None = None,
    dtype_bytes: int | None = None,
    compute_s: float | None = None,
) -> Job:
    """Make the job of a model.

    An architecture takes the first three: by default a v100, 32 samples and numbers of 4 bytes;
    with 2, the chip also computes in half precision. The thesis's jobs take ``compute_s`` alone.
    Options without effect are refused, which is why there are no defaults in the signature.

    Backward takes twice as long as forward: there are two products, for the gradients of the
    input and of the weights. The first operation has only the second, and takes as long as
    forward. The optimizer is not part of the model: updates take no time.
    """
    find("model", name, _MODELS)
    given = {"accelerator": accelerator, "batch": batch, "dtype_bytes": dtype_bytes}
    if name in _SHAPES:
        _refuse(given, f"{name} comes with its own sizes and times")
        return _SHAPES[name]() if compute_s is None else _SHAPES[name](compute_s=compute_s)
    _refuse({"compute_s": compute_s}, f"the times of {name} follow from accelerator and batch")
    return _on(
        find_accelerator("v100" if accelerator is None else accelerator),
        name,
        32 if batch is None else batch,
        4 if dtype_bytes is None else dtype_bytes,
    )


def summary(name: str) -> Summary:
    """Count a model's layers, tensors, parameters and FLOPs."""
    job = make(name)
    counts = (name, len(job.layers), len(job.tensors), job.total_bytes)
    if name in _SHAPES:
        return Summary(*counts)
    network = build(name)
    return Summary(*counts, network.parameter_count, network.flops / 1e9, network.sample)


def build(name: str) -> Network:
    """Build the architecture of that name, without an accelerator or a batch size."""
    return find("architecture", name, _NETWORKS)()


def _on(chip: Accelerator, name: str, batch: int, dtype_bytes: int) -> Job:
    if not 1 <= batch <= _LARGEST_BATCH:
        raise InputError(f"a batch of {batch} samples cannot be trained; 1 to 2**30 will do")
    network = build(name)
    layers = []
    for i, operation in enumerate(network.operations):
        forward_s = chip.forward_s(operation, batch, dtype_bytes)
        layers.append(Layer(operation.name, forward_s, forward_s * (2 if i else 1)))
    tensors = [
        Tensor(parameter.name, parameter.count * dtype_bytes, tuple(users))
        for parameter, users in network.users.items()
    ]
    return Job(name, tuple(layers), tuple(tensors))


def _refuse(options: Mapping[str, object], because: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        them = "it" if len(given) == 1 else "them"
        raise InputError(
            f"{because}, so {' and '.join(given)} would have no effect; leave {them} out"
        )
