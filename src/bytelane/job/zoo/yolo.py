"""YOLOv3: Darknet-53 without its classifier, and a detector at each of three scales.

61,949,149 trained parameters for COCO's 80 classes. Darknet's own file holds 62,001,757 numbers:
the other 52,608 are batch normalisation's running means and variances, which have no gradient.
"""

from bytelane.job.zoo.builder import Builder
from bytelane.job.zoo.network import Image, Network

_CLASSES = 80
_ANCHORS = 3
_BOX = 5  # 4 coordinates and the objectness
_OUTPUTS = _ANCHORS * (_BOX + _CLASSES)

# Channels of a stage and how many residual blocks it has; each stage halves the image first.
_STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))


def yolov3() -> Network:
    """Build YOLOv3 in darknet's order: the coarse scale first, each finer one from its features."""
    net = Builder()
    stages = _darknet53(net, Image(3, 416, 416))
    x = _detector(net, "coarse", stages[-1], 512)
    x = _unit(net, "to_middle", x, 256, 1).upsample(2)
    x = _detector(net, "middle", x.concat(stages[-2]), 256)
    x = _unit(net, "to_fine", x, 128, 1).upsample(2)
    _detector(net, "fine", x.concat(stages[-3]), 128)
    return net.network("an image of 416 x 416")


def _darknet53(net: Builder, x: Image) -> list[Image]:
    """Return the output of each stage."""
    outputs = []
    x = _unit(net, "darknet.0", x, 32, 3)
    for stage, (channels, blocks) in enumerate(_STAGES, start=1):
        at = f"darknet.{stage}"
        x = _unit(net, f"{at}.halve", x, channels, 3, stride=2)
        for block in range(blocks):
            y = _unit(net, f"{at}.{block}.0", x, channels // 2, 1)
            x = x.plus(_unit(net, f"{at}.{block}.1", y, channels, 3))
        outputs.append(x)
    return outputs


def _detector(net: Builder, at: str, x: Image, channels: int) -> Image:
    """Add a detector; return the features for the next finer scale."""
    for i in range(2):
        x = _unit(net, f"{at}.{2 * i}", x, channels, 1)
        x = _unit(net, f"{at}.{2 * i + 1}", x, 2 * channels, 3)
    x = _unit(net, f"{at}.4", x, channels, 1)
    y = _unit(net, f"{at}.5", x, 2 * channels, 3)
    net.conv(f"{at}.boxes", y, _OUTPUTS, 1, bias=True)
    return x


def _unit(net: Builder, at: str, x: Image, channels: int, kernel: int, *, stride: int = 1) -> Image:
    x = net.conv(f"{at}.conv", x, channels, kernel, stride=stride)
    return net.batch_norm(f"{at}.bn", x)
