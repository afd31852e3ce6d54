"""Estimate how long an operation takes on a named accelerator (roofline model).

An operation takes as long as its arithmetic or its memory traffic, whichever is longer. Peak rates
and bandwidths are those of the data sheets. How much of a peak rate a framework gets is one factor
per accelerator and precision, chosen so that ResNet-50 trains as fast as was published for it (see
the table). Compared with the published speeds of other models, ResNet-152 and Inception-v3 come out
within 25 % and BERT-large up to 1.4 times too fast, but AlexNet and VGG up to 2.4 times too slow,
since cuDNN's Winograd kernels need fewer multiplications than are counted here. For better numbers,
measure.

Kernel launch times, which dominate when batches are tiny, are left out.
"""

import msgspec

from bytelane.errors import InputError
from bytelane.job.zoo.lookup import find
from bytelane.job.zoo.network import Operation


class Rate(msgspec.Struct, frozen=True):
    """Arithmetic in one precision."""

    peak_flops: float
    """Per second."""
    efficiency: float
    """The part of the peak that training gets."""


class Accelerator(msgspec.Struct, frozen=True):
    """One chip."""

    memory: float
    """Bytes per second."""
    single: Rate
    half: Rate

    def rate(self, dtype_bytes: int) -> Rate:
        """Return the arithmetic rate for numbers of that size."""
        rates = {2: self.half, 4: self.single}
        if dtype_bytes not in rates:
            raise InputError(f"dtype_bytes is {dtype_bytes}; 2 (half precision) or 4 (single) do")
        return rates[dtype_bytes]

    def forward_s(self, operation: Operation, batch: int, dtype_bytes: int) -> float:
        """Return the seconds of an operation's forward pass."""
        rate = self.rate(dtype_bytes)
        moved_bytes = (operation.moved * batch + operation.moved_once) * dtype_bytes
        return max(
            operation.flops * batch / (rate.peak_flops * rate.efficiency),
            moved_bytes / self.memory,
        )


# Efficiencies were fitted to ResNet-50 in images per second, on one chip:
#   k80   51.9 at batch 64, p100 219 at batch 64: TensorFlow's benchmark page (May 2017).
#   v100  375 in single and 1200 in mixed precision, at batch 128 and 256; a100 938 and 2470, at
#         batch 256: NVIDIA's DeepLearningExamples, ResNet-50 v1.5 in PyTorch (the v100's single
#         precision: the mean of PyTorch's 367 and MXNet's 384).
#   t4    no published figure was used: the v100's factors, probably too high for a 70 W card.
_ACCELERATORS = {
    # NVIDIA Tesla K80 data sheet: a board of two chips has 8.74 TFLOPS (boosted) and 480 GB/s. This
    # is one chip. It stores halves but computes in single precision.
    "k80": Accelerator(240e9, Rate(4.37e12, 0.32), Rate(4.37e12, 0.32)),
    # NVIDIA Tesla P100 data sheet, SXM2. No tensor cores: halves are ordinary arithmetic, twice as
    # fast, so the factor of single precision is assumed for them.
    "p100": Accelerator(732e9, Rate(10.6e12, 0.57), Rate(21.2e12, 0.57)),
    # NVIDIA Tesla V100 data sheet, SXM2; halves on tensor cores.
    "v100": Accelerator(900e9, Rate(15.7e12, 0.70), Rate(125e12, 0.32)),
    # NVIDIA T4 data sheet; halves on tensor cores.
    "t4": Accelerator(320e9, Rate(8.1e12, 0.70), Rate(65e12, 0.32)),
    # NVIDIA A100 data sheet, SXM with 40 GB. Single precision means TF32 on tensor cores, as the
    # published figure does; PyTorch uses it for convolutions unless told otherwise, but for matrix
    # products only when asked, and they run at 19.5 TFLOPS without.
    "a100": Accelerator(1555e9, Rate(156e12, 0.19), Rate(312e12, 0.29)),
}


def accelerator_names() -> tuple[str, ...]:
    """Return the names of the accelerators, oldest first."""
    return tuple(_ACCELERATORS)


def find_accelerator(name: str) -> Accelerator:
    """Return the accelerator of that name."""
    return find("accelerator", name, _ACCELERATORS)
