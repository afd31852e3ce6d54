"""Scale the bytes and times of a job, e.g. so that a zoo model fits a slow link."""

import msgspec

from bytelane.job import Job

FLOAT_BYTES = 4


def scale_bytes(job: Job, total_bytes: int) -> Job:
    """Scale all tensors to ``total_bytes``, each in whole floats and at least one."""
    factor = total_bytes / job.total_bytes
    tensors = tuple(
        msgspec.structs.replace(
            tensor, bytes=max(1, round(tensor.bytes * factor / FLOAT_BYTES)) * FLOAT_BYTES
        )
        for tensor in job.tensors
    )
    return msgspec.structs.replace(job, tensors=tensors)


def scale_compute(job: Job, compute_s: float) -> Job:
    """Scale all times so that computing alone takes ``compute_s``."""
    factor = compute_s / job.compute_s
    layers = tuple(
        msgspec.structs.replace(
            layer,
            forward_s=layer.forward_s * factor,
            backward_s=layer.backward_s * factor,
            update_s=layer.update_s * factor,
        )
        for layer in job.layers
    )
    return msgspec.structs.replace(job, layers=layers, outside_s=job.outside_s * factor)
