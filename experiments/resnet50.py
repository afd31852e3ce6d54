"""ResNet-50 in plain PyTorch, with modules named and called as in the usual implementation.

Every module is called the same number of times and in the same order as there, containers and the
shared ReLU of a block too, so that "layer 120" means the same.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


class NoConv2d(nn.Conv2d):
    """Has the weights and the shapes of a convolution, and gives zeros at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (x.shape[2] - 1) // self.stride[0] + 1
        shape = (len(x), self.out_channels, size, size)
        result: torch.Tensor = _Zeros.apply(x, self.weight, shape)  # type: ignore[no-untyped-call]
        return result


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, shape: tuple[int, ...]
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(weight), None


class Bottleneck(nn.Module):
    """Three convolutions and a way around them."""

    def __init__(self, conv: type[nn.Conv2d], inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = conv(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        around = x if self.downsample is None else self.downsample(x)
        y += around
        result: torch.Tensor = self.relu(y)
        return result


class ResNet50(nn.Sequential):
    """25,557,032 parameters in 161 tensors."""

    def __init__(self, conv: type[nn.Conv2d] = nn.Conv2d) -> None:
        parts: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=conv(3, 64, 7, 2, padding=3, bias=False),
            bn1=nn.BatchNorm2d(64),
            relu=nn.ReLU(inplace=True),
            maxpool=nn.MaxPool2d(3, 2, padding=1),
        )
        inputs = 64
        for number, (width, count) in enumerate(STAGES, start=1):
            blocks = []
            for index in range(count):
                stride = 2 if index == 0 and number > 1 else 1
                blocks.append(Bottleneck(conv, inputs, width, stride))
                inputs = EXPANSION * width
            parts[f"layer{number}"] = nn.Sequential(*blocks)
        parts |= {"avgpool": nn.AdaptiveAvgPool2d(1), "fc": nn.Linear(inputs, 1000)}
        super().__init__(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *features, fc = self.children()
        for part in features:
            x = part(x)
        result: torch.Tensor = fc(torch.flatten(x, 1))
        return result
