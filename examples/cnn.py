"""Train a small convolutional network in data parallel, with two lines of Bytelane.

    torchrun --standalone --nproc-per-node 2 examples/cnn.py

The pictures are synthetic: coloured noise with a bright square, whose place is the class. With
--ddp the same script trains under PyTorch's own DistributedDataParallel; ``bytelane try
examples/cnn.py --ddp`` compares both.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import bytelane

SIDE, CLASSES = 32, 16  # pictures of 32 x 32; the square is in one of 4 x 4 places


def convolutions(channels: int, width: int) -> nn.Sequential:
    """Two convolutions, and half the resolution."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


def make_model(width: int) -> nn.Sequential:
    return nn.Sequential(
        convolutions(3, width),
        convolutions(width, 2 * width),
        convolutions(2 * width, 4 * width),
        nn.Flatten(),
        nn.Linear(4 * width * (SIDE // 8) ** 2, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def make_batch(size: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(size, 3, SIDE, SIDE, generator=random)
    classes = torch.randint(CLASSES, (size,), generator=random)
    cell = SIDE // 4
    for image, place in zip(images, classes.tolist(), strict=True):
        top, left = divmod(place, 4)
        image[:, top * cell : (top + 1) * cell, left * cell : (left + 1) * cell] += 0.5
    return images, classes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="steps to train (default 60)")
    parser.add_argument("--batch", type=int, default=32, help="pictures per worker (default 32)")
    parser.add_argument("--width", type=int, default=32, help="channels of layer 1 (default 32)")
    parser.add_argument("--ddp", action="store_true", help="train under DDP, without Bytelane")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = make_model(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    if options.ddp:
        model = DistributedDataParallel(model)
    else:
        bytelane.prepare(model, optimizer)  # the only change besides the import

    random = torch.Generator().manual_seed(rank)  # every worker sees other pictures
    began, seen = time.perf_counter(), 0
    for step in range(options.steps):
        images, classes = make_batch(options.batch, random)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        seen += options.batch * world
        if rank == 0 and (step % 10 == 0 or step == options.steps - 1):
            rate = seen / (time.perf_counter() - began)
            print(f"step {step:4d}   loss {loss.item():.4f}   {rate:6.0f} images/s")
            began, seen = time.perf_counter(), 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
