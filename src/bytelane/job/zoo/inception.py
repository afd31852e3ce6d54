"""Inception-v3 as torchvision trains it: with its auxiliary classifier, 27,161,264 parameters.

Branches run one after the other, in the order of torchvision's ``forward``. The auxiliary
classifier sits in the middle of that order, so its gradients are ready in the middle, too. Without
it (in ``eval``) the model has 23,834,568 parameters.
"""

from bytelane.job.zoo.builder import Builder
from bytelane.job.zoo.network import Image, Network

_Kernel = int | tuple[int, int]
_CLASSES = 1000
_ACROSS, _DOWN = (1, 7), (7, 1)


def inception_v3() -> Network:
    net = Builder()
    x = _unit(net, "Conv2d_1a_3x3", Image(3, 299, 299), 32, 3, stride=2, padding=0)
    x = _unit(net, "Conv2d_2a_3x3", x, 32, 3, padding=0)
    x = _unit(net, "Conv2d_2b_3x3", x, 64, 3).pool(3, 2)
    x = _unit(net, "Conv2d_3b_1x1", x, 80, 1)
    x = _unit(net, "Conv2d_4a_3x3", x, 192, 3, padding=0).pool(3, 2)
    x = _mixed_5(net, "Mixed_5b", x, pooled=32)
    x = _mixed_5(net, "Mixed_5c", x, pooled=64)
    x = _mixed_5(net, "Mixed_5d", x, pooled=64)
    x = _halve_to_17(net, "Mixed_6a", x)
    x = _mixed_6(net, "Mixed_6b", x, 128)
    x = _mixed_6(net, "Mixed_6c", x, 160)
    x = _mixed_6(net, "Mixed_6d", x, 160)
    x = _mixed_6(net, "Mixed_6e", x, 192)
    _auxiliary(net, "AuxLogits", x)
    x = _halve_to_8(net, "Mixed_7a", x)
    x = _mixed_7(net, "Mixed_7b", x)
    x = _mixed_7(net, "Mixed_7c", x)
    net.linear("fc", x.pool_to(1).flatten(), _CLASSES)
    return net.network("an image of 299 x 299")


def _unit(
    net: Builder,
    at: str,
    x: Image,
    channels: int,
    kernel: _Kernel,
    *,
    stride: int = 1,
    padding: int | None = None,
) -> Image:
    x = net.conv(f"{at}.conv", x, channels, kernel, stride=stride, padding=padding)
    return net.batch_norm(f"{at}.bn", x)


def _chain(net: Builder, at: str, x: Image, *units: tuple[str, int, _Kernel]) -> Image:
    """Run units one after the other, each given by the end of its name, channels and kernel."""
    for end, channels, kernel in units:
        x = _unit(net, f"{at}{end}", x, channels, kernel)
    return x


def _mixed_5(net: Builder, at: str, x: Image, pooled: int) -> Image:
    one = _unit(net, f"{at}.branch1x1", x, 64, 1)
    five = _chain(net, f"{at}.branch5x5", x, ("_1", 48, 1), ("_2", 64, 5))
    double = _chain(net, f"{at}.branch3x3dbl", x, ("_1", 64, 1), ("_2", 96, 3), ("_3", 96, 3))
    pool = _unit(net, f"{at}.branch_pool", x, pooled, 1)
    return one.concat(five, double, pool)


def _halve_to_17(net: Builder, at: str, x: Image) -> Image:
    three = _unit(net, f"{at}.branch3x3", x, 384, 3, stride=2, padding=0)
    double = _chain(net, f"{at}.branch3x3dbl", x, ("_1", 64, 1), ("_2", 96, 3))
    double = _unit(net, f"{at}.branch3x3dbl_3", double, 96, 3, stride=2, padding=0)
    return three.concat(double, x.pool(3, 2))


def _mixed_6(net: Builder, at: str, x: Image, inner: int) -> Image:
    one = _unit(net, f"{at}.branch1x1", x, 192, 1)
    seven = _chain(
        net, f"{at}.branch7x7", x, ("_1", inner, 1), ("_2", inner, _ACROSS), ("_3", 192, _DOWN)
    )
    double = _chain(
        net,
        f"{at}.branch7x7dbl",
        x,
        ("_1", inner, 1),
        ("_2", inner, _DOWN),
        ("_3", inner, _ACROSS),
        ("_4", inner, _DOWN),
        ("_5", 192, _ACROSS),
    )
    pool = _unit(net, f"{at}.branch_pool", x, 192, 1)
    return one.concat(seven, double, pool)


def _auxiliary(net: Builder, at: str, x: Image) -> None:
    y = _unit(net, f"{at}.conv0", x.pool(5, 3), 128, 1)
    y = _unit(net, f"{at}.conv1", y, 768, 5, padding=0)
    net.linear(f"{at}.fc", y.pool_to(1).flatten(), _CLASSES)


def _halve_to_8(net: Builder, at: str, x: Image) -> Image:
    three = _unit(net, f"{at}.branch3x3_1", x, 192, 1)
    three = _unit(net, f"{at}.branch3x3_2", three, 320, 3, stride=2, padding=0)
    seven = _chain(
        net, f"{at}.branch7x7x3", x, ("_1", 192, 1), ("_2", 192, _ACROSS), ("_3", 192, _DOWN)
    )
    seven = _unit(net, f"{at}.branch7x7x3_4", seven, 192, 3, stride=2, padding=0)
    return three.concat(seven, x.pool(3, 2))


def _mixed_7(net: Builder, at: str, x: Image) -> Image:
    one = _unit(net, f"{at}.branch1x1", x, 320, 1)
    three = _unit(net, f"{at}.branch3x3_1", x, 384, 1)
    wide = _unit(net, f"{at}.branch3x3_2a", three, 384, (1, 3))
    high = _unit(net, f"{at}.branch3x3_2b", three, 384, (3, 1))
    double = _chain(net, f"{at}.branch3x3dbl", x, ("_1", 448, 1), ("_2", 384, 3))
    double_wide = _unit(net, f"{at}.branch3x3dbl_3a", double, 384, (1, 3))
    double_high = _unit(net, f"{at}.branch3x3dbl_3b", double, 384, (3, 1))
    pool = _unit(net, f"{at}.branch_pool", x, 192, 1)
    return one.concat(wide, high, double_wide, double_high, pool)
