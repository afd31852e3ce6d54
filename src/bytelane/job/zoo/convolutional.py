"""AlexNet, VGG, ResNet and DenseNet, as torchvision builds them for ImageNet's 1000 classes."""

from bytelane.job.zoo.builder import Builder
from bytelane.job.zoo.network import Image, Network

_PICTURE = Image(3, 224, 224)
_SAMPLE = "an image of 224 x 224"
_CLASSES = 1000

# Channels of the convolutions between one halving of the image and the next.
_VGG16 = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
_VGG19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


def alexnet() -> Network:
    """Build the one-column variant (Krizhevsky 2014), which is not the one of 2012."""
    net = Builder()
    x = net.conv("features.0", _PICTURE, 64, 11, stride=4, padding=2, bias=True).pool(3, 2)
    x = net.conv("features.3", x, 192, 5, bias=True).pool(3, 2)
    x = net.conv("features.6", x, 384, 3, bias=True)
    x = net.conv("features.8", x, 256, 3, bias=True)
    x = net.conv("features.10", x, 256, 3, bias=True).pool(3, 2)
    row = net.linear("classifier.1", x.pool_to(6).flatten(), 4096)
    row = net.linear("classifier.4", row, 4096)
    net.linear("classifier.6", row, _CLASSES)
    return net.network(_SAMPLE)


def vgg16() -> Network:
    """Build configuration D of the paper, without batch normalisation."""
    return _vgg(_VGG16)


def vgg19() -> Network:
    """Build configuration E of the paper, without batch normalisation."""
    return _vgg(_VGG19)


def _vgg(stages: tuple[tuple[int, ...], ...]) -> Network:
    net = Builder()
    x = _PICTURE
    module = 0
    for stage in stages:
        for channels in stage:
            x = net.conv(f"features.{module}", x, channels, 3, bias=True)
            module += 2  # a ReLU in between
        x = x.pool(2, 2)
        module += 1
    row = net.linear("classifier.0", x.pool_to(7).flatten(), 4096)
    row = net.linear("classifier.3", row, 4096)
    net.linear("classifier.6", row, _CLASSES)
    return net.network(_SAMPLE)


def resnet50() -> Network:
    return _resnet((3, 4, 6, 3))


def resnet152() -> Network:
    return _resnet((3, 8, 36, 3))


def _resnet(stages: tuple[int, ...]) -> Network:
    net = Builder()
    x = net.conv("conv1", _PICTURE, 64, 7, stride=2)
    x = net.batch_norm("bn1", x).pool(3, 2, 1)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = _bottleneck(net, f"layer{stage + 1}.{block}", x, 64 << stage, stride)
    net.linear("fc", x.pool_to(1).flatten(), _CLASSES)
    return net.network(_SAMPLE)


def _bottleneck(net: Builder, at: str, x: Image, channels: int, stride: int) -> Image:
    """Narrow, convolve, widen. The stride is in the 3 x 3: torchvision's version 1.5."""
    y = net.batch_norm(f"{at}.bn1", net.conv(f"{at}.conv1", x, channels, 1))
    y = net.batch_norm(f"{at}.bn2", net.conv(f"{at}.conv2", y, channels, 3, stride=stride))
    y = net.batch_norm(f"{at}.bn3", net.conv(f"{at}.conv3", y, 4 * channels, 1))
    if x != y:
        x = net.conv(f"{at}.downsample.0", x, 4 * channels, 1, stride=stride)
        x = net.batch_norm(f"{at}.downsample.1", x)
    return y.plus(x)


def densenet121() -> Network:
    """Build DenseNet-BC: growth 32, bottlenecks of 128, transitions that halve."""
    growth = 32
    net = Builder()
    x = net.conv("features.conv0", _PICTURE, 2 * growth, 7, stride=2)
    x = net.batch_norm("features.norm0", x).pool(3, 2, 1)
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        if block > 1:
            x = _transition(net, f"features.transition{block - 1}", x)
        for layer in range(1, layers + 1):
            at = f"features.denseblock{block}.denselayer{layer}"
            y = net.conv(f"{at}.conv1", net.batch_norm(f"{at}.norm1", x), 4 * growth, 1)
            y = net.conv(f"{at}.conv2", net.batch_norm(f"{at}.norm2", y), growth, 3)
            x = x.concat(y)
    x = net.batch_norm("features.norm5", x)
    net.linear("classifier", x.pool_to(1).flatten(), _CLASSES)
    return net.network(_SAMPLE)


def _transition(net: Builder, at: str, x: Image) -> Image:
    x = net.batch_norm(f"{at}.norm", x)
    return net.conv(f"{at}.conv", x, x.channels // 2, 1).pool(2, 2)
