"""The zoo: totals as published, tensors as torch makes them, times that follow from both."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bytelane.errors import InputError
from bytelane.job import Job, load, save, zoo
from bytelane.job.zoo.accelerator import find_accelerator
from bytelane.job.zoo.catalogue import build
from bytelane.job.zoo.convolutional import resnet50, vgg16
from bytelane.job.zoo.network import Image, Network
from bytelane.job.zoo.thesis import thesis_4, thesis_5
from bytelane.job.zoo.transformers import bert_large, gpt2, transformer_base

SHAPES = ("thesis-4", "thesis-5")
NETWORKS = [name for name in zoo.names() if name not in SHAPES]
models = st.sampled_from(NETWORKS)
chips = st.sampled_from(zoo.accelerator_names())
batches = st.integers(1, 512)

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "inception-v3": 27_161_264,  # torchvision, with the auxiliary classifier
    "yolov3": 61_949_149,  # trained; darknet's file has 62,001,757 with running statistics
    "bert-large": 336_226_108,  # Hugging Face's BertForPreTraining
    "gpt2": 124_439_808,
    "transformer-base": 63_045_632,  # by the paper's formulas; its table says 65 million
}
TENSORS = {
    "alexnet": 16,
    "vgg16": 32,
    "vgg19": 38,
    "resnet50": 161,
    "resnet152": 467,
    "densenet121": 364,
    "inception-v3": 292,
    "yolov3": 222,
    "gpt2": 148,
}
# Multiply-adds as torchvision lists them; darknet and nanoGPT count both, hence the halves.
GMACS = {
    "alexnet": 0.714,
    "vgg16": 15.47,
    "vgg19": 19.632,
    "resnet50": 4.089,
    "resnet152": 11.514,
    "densenet121": 2.834,
    "inception-v3": 5.713,
    "yolov3": 65.86 / 2,
    "gpt2": (2 * (124_439_808 - 1024 * 768) + 4 * 12 * 768 * 1024) * 1024 / 2e9,
}


def test_the_zoo_has_these_models() -> None:
    assert set(zoo.names()) == {*PARAMETERS, *SHAPES}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters_add_up_to_the_published_total(name: str) -> None:
    assert zoo.summary(name).parameters == PARAMETERS[name]
    assert zoo.make(name).total_bytes == 4 * PARAMETERS[name]
    assert zoo.make(name, dtype_bytes=2).total_bytes == 2 * PARAMETERS[name]


@pytest.mark.parametrize("name", TENSORS)
def test_there_are_as_many_tensors_as_in_the_reference(name: str) -> None:
    assert zoo.summary(name).tensors == TENSORS[name]


@pytest.mark.parametrize("name", GMACS)
def test_the_arithmetic_is_as_published(name: str) -> None:
    assert zoo.summary(name).forward_gflops == pytest.approx(2 * GMACS[name], rel=2e-3)


def test_without_its_pre_training_heads_bert_has_the_encoders_total() -> None:
    encoder = [p for p in bert_large().users if p.name.startswith("bert.")]
    assert sum(p.count for p in encoder) == 335_141_888


def test_without_its_auxiliary_classifier_inception_has_the_smaller_total() -> None:
    tensors = zoo.make("inception-v3").tensors
    rest = [t.bytes // 4 for t in tensors if not t.name.startswith("AuxLogits")]
    assert sum(rest) == 23_834_568


@pytest.mark.parametrize(
    ("name", "tensor", "users"),
    [
        ("gpt2", "transformer.wte.weight", ["transformer.wte", "lm_head"]),
        (
            "bert-large",
            "bert.embeddings.word_embeddings.weight",
            ["bert.embeddings.word_embeddings", "cls.predictions.decoder"],
        ),
        (
            "transformer-base",
            "embedding.weight",
            ["encoder.embedding", "decoder.embedding", "output"],
        ),
    ],
)
def test_a_tied_weight_is_one_tensor_of_several_layers(
    name: str, tensor: str, users: list[str]
) -> None:
    job = zoo.make(name)
    tied = [t for t in job.tensors if len(t.layers) > 1]
    assert [t.name for t in tied] == [tensor]
    assert [job.layers[i].name for i in tied[0].layers] == users
    assert tied[0].complete_after == 0


@pytest.mark.parametrize("name", zoo.names())
def test_every_layer_takes_its_time(name: str) -> None:
    job = zoo.make(name)
    assert all(layer.forward_s > 0 and layer.backward_s > 0 for layer in job.layers)
    assert all(layer.update_s == 0 for layer in job.layers)


@pytest.mark.parametrize("name", zoo.names())
def test_names_are_not_used_twice(name: str) -> None:
    job = zoo.make(name)
    for things in (job.layers, job.tensors):
        assert len({thing.name for thing in things}) == len(things)


@pytest.mark.parametrize("name", zoo.names())
def test_tensors_come_in_the_order_in_which_forward_needs_them(name: str) -> None:
    needed = [tensor.needed_by for tensor in zoo.make(name).tensors]
    assert needed == sorted(needed)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_attention_has_no_parameters(name: str) -> None:
    job = zoo.make(name)
    used = {layer for tensor in job.tensors for layer in tensor.layers}
    bare = [layer.name for i, layer in enumerate(job.layers) if i not in used]
    assert all("att" in one for one in bare)
    assert bool(bare) == (name in ("bert-large", "gpt2", "transformer-base"))


@pytest.mark.parametrize("name", NETWORKS)
def test_backward_is_twice_forward_except_where_nobody_wants_the_inputs_gradient(name: str) -> None:
    first, *others = zoo.make(name).layers
    assert first.backward_s == first.forward_s
    assert all(layer.backward_s == 2 * layer.forward_s for layer in others)


def test_a_convolution_takes_as_long_as_its_arithmetic() -> None:
    layer = zoo.make("vgg16", accelerator="v100", batch=32).layers[1]
    assert layer.name == "features.2"
    flops = 2 * 64 * 64 * 9 * 224 * 224 * 32
    assert layer.forward_s == pytest.approx(flops / (15.7e12 * 0.70), rel=1e-12)


def test_a_normalisation_takes_as_long_as_its_memory() -> None:
    layer = zoo.make("resnet50", accelerator="v100", batch=32).layers[1]
    assert layer.name == "bn1"
    moved = 4 * (3 * 64 * 112 * 112 * 32 + 2 * 64)
    assert layer.forward_s == pytest.approx(moved / 900e9, rel=1e-12)


def test_a_look_up_reads_rows_and_not_the_table() -> None:
    layer = zoo.make("gpt2", accelerator="p100", batch=8).layers[0]
    assert layer.forward_s == pytest.approx(2 * 1024 * 768 * 8 * 4 / 732e9, rel=1e-12)


def test_half_precision_moves_half_as_much() -> None:
    single, half = (zoo.make("resnet50", dtype_bytes=size).layers[1] for size in (4, 2))
    assert half.forward_s == pytest.approx(single.forward_s / 2, rel=1e-12)


@given(models, chips, batches, st.integers(2, 8))
def test_a_larger_batch_takes_longer_and_linearly_so_where_arithmetic_decides(
    name: str, chip: str, batch: int, times: int
) -> None:
    small = zoo.make(name, accelerator=chip, batch=batch)
    large = zoo.make(name, accelerator=chip, batch=batch * times)
    network = build(name)
    rate = find_accelerator(chip).single
    for operation, one, more in zip(network.operations, small.layers, large.layers, strict=True):
        assert one.forward_s <= more.forward_s * (1 + 1e-12)
        assert more.forward_s <= one.forward_s * times * (1 + 1e-12)
        arithmetic = operation.flops * batch / (rate.peak_flops * rate.efficiency)
        if one.forward_s == arithmetic:
            assert more.forward_s == pytest.approx(times * one.forward_s, rel=1e-12)


@pytest.mark.parametrize(
    ("chip", "batch", "size", "published"),
    [
        ("k80", 64, 4, 51.9),
        ("p100", 64, 4, 219),
        ("v100", 128, 4, 375),
        ("v100", 256, 2, 1200),
        ("a100", 256, 4, 938),
        ("a100", 256, 2, 2470),
    ],
)
def test_the_efficiencies_give_resnet50_its_published_images_a_second(
    chip: str, batch: int, size: int, published: float
) -> None:
    job = zoo.make("resnet50", accelerator=chip, batch=batch, dtype_bytes=size)
    assert batch / job.compute_s == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", zoo.names())
@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_job_of_the_zoo_survives_its_file(name: str, ending: str, tmp_path: Any) -> None:
    job = zoo.make(name)
    save(job, tmp_path / f"job.{ending}")
    back = load(tmp_path / f"job.{ending}")
    assert back.tensors == job.tensors
    assert back.compute_s == pytest.approx(job.compute_s, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "ResNet-50"}, "no model 'ResNet-50'; did you mean resnet50 or resnet152?"),
        ({"name": "nonsense"}, r"no model 'nonsense' \(there are alexnet, vgg16"),
        ({"name": "gpt2", "accelerator": "V100"}, "no accelerator 'V100'; did you mean v100"),
        ({"name": "gpt2", "accelerator": ""}, r"no accelerator '' \(there are k80, p100"),
        ({"name": "gpt2", "batch": 0}, "a batch of 0 samples cannot be trained"),
        ({"name": "gpt2", "batch": 10**400}, "samples cannot be trained; 1 to"),
        ({"name": "gpt2", "dtype_bytes": 8}, "dtype_bytes is 8; 2"),
        ({"name": "gpt2", "compute_s": 1.0}, "so compute_s would have no effect; leave it out"),
        ({"name": "thesis-4", "batch": 32}, "so batch would have no effect; leave it out"),
        (
            {"name": "thesis-5", "batch": 32, "accelerator": "v100"},
            "so accelerator and batch would have no effect; leave them out",
        ),
        ({"name": "thesis-4", "dtype_bytes": 4}, "thesis-4 comes with its own sizes and times"),
        ({"name": "thesis-4", "compute_s": 0.0}, "compute_s is 0.0; a time to share out"),
        ({"name": "thesis-5", "compute_s": math.nan}, "compute_s is nan"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        zoo.make(**arguments)


def test_a_line_has_no_slope_with_one_layer() -> None:
    with pytest.raises(InputError, match="a job of 1 layers has no slope"):
        thesis_4(layers=1)


def test_shapes_without_an_architecture_have_no_counts() -> None:
    found = zoo.summary("thesis-5")
    assert (found.layers, found.tensors, found.gradient_bytes) == (50, 50, 98_222_124)
    assert (found.parameters, found.forward_gflops, found.sample) == (None, None, None)


def test_chapter_4_has_the_formulas_sizes_and_times() -> None:
    job = zoo.make("thesis-4")
    n, forward, backward = 50, 0.3, 0.6
    base = 2 * 100e6 / (9 * n)
    factors = [1 if i <= n // 2 else 4 if i <= 3 * n // 4 else 12 for i in range(n)]
    sizes = [tensor.bytes for tensor in job.tensors]
    assert sizes == pytest.approx([base * factor for factor in factors], abs=0.5)
    assert job.total_bytes == pytest.approx(218 * base, abs=25) == pytest.approx(96.9e6, rel=1e-3)
    d, e = (2 * total / (n * (n - 1)) for total in (forward, backward))
    assert [layer.forward_s for layer in job.layers] == pytest.approx(
        [2 * forward / n - i * d for i in range(n - 1)] + [d], rel=1e-9
    )
    assert [layer.backward_s for layer in job.layers] == pytest.approx(
        [e] + [i * e for i in range(1, n)], rel=1e-9
    )
    # The layer that would take no time takes a step: each pass is a step longer than its share.
    assert math.fsum(layer.forward_s for layer in job.layers) == pytest.approx(forward + d)
    assert math.fsum(layer.backward_s for layer in job.layers) == pytest.approx(backward + e)


def chapter_4_iteration_s(job: Job, *, priority: bool) -> float:
    """The thesis's event simulator at 1 Gbit/s: fused all-reduces, one at a time."""
    groups: list[list[int]] = [[]]
    for i, tensor in enumerate(job.tensors):
        if sum(job.tensors[k].bytes for k in groups[-1]) + tensor.bytes > 6.28e6:
            groups.append([])
        groups[-1].append(i)
    finished = [0.0] * len(groups)
    clock = link = start = before = 0.0
    for _ in range(8):
        for g, group in enumerate(groups):
            clock = max(clock, finished[g] if priority else max(finished))
            before, start = (start, clock) if g == 0 else (before, start)
            clock += math.fsum(job.layers[i].forward_s for i in group)
        waiting = {}
        for g in reversed(range(len(groups))):
            clock += math.fsum(job.layers[i].backward_s for i in groups[g])
            waiting[g] = clock
        while waiting:
            link = max(link, min(waiting.values()))
            ready = [g for g in waiting if waiting[g] <= link]
            g = min(ready) if priority else max(ready)
            link += sum(job.tensors[i].bytes for i in groups[g]) / 125e6 + 2e-5
            finished[g] = link
            del waiting[g]
    return start - before


def test_chapter_4_gives_the_thesiss_iteration_times() -> None:
    job = zoo.make("thesis-4")
    assert int(1000 * chapter_4_iteration_s(job, priority=False)) == 1099
    assert int(1000 * chapter_4_iteration_s(job, priority=True)) == 971


def test_chapter_5_has_the_stated_bytes() -> None:
    job = zoo.make("thesis-5")
    sizes = [tensor.bytes for tensor in job.tensors]
    assert sizes == [444_444] * 25 + [4 * 444_444] * 13 + [12 * 444_444] * 12
    assert job.total_bytes == 98_222_124


@pytest.mark.parametrize("make", [thesis_4, thesis_5])
@pytest.mark.parametrize("compute_s", [2.24, 1.12, 0.56, 0.28])
def test_the_shapes_share_out_the_time_they_are_given(
    make: Callable[..., Job], compute_s: float
) -> None:
    job = make(compute_s=compute_s)
    assert job.compute_s == pytest.approx(compute_s * (1 + 2 / (50 * 49)))
    assert zoo.make(job.name, compute_s=compute_s) == job


def test_branches_that_do_not_fit_are_noticed() -> None:
    with pytest.raises(AssertionError):
        Image(3, 8, 8).concat(Image(3, 4, 4))
    with pytest.raises(AssertionError):
        Image(3, 8, 8).plus(Image(4, 8, 8))


# What follows holds the zoo against torch's own modules, built without memory on device "meta".


def shapes(module: Any) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


def of_block(network: Network, start: str) -> list[tuple[int, ...]]:
    return [p.shape for p in network.users if p.name.startswith(start)]


def counted_flops(run: Callable[[], object]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def test_vgg16_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    modules: list[Any] = []
    before = 3
    with torch.device("meta"):
        for channels in (64, 64, 0, 128, 128, 0, *(256,) * 3, 0, *(512,) * 3, 0, *(512,) * 3, 0):
            if channels:
                modules += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
                before = channels
            else:
                modules.append(nn.MaxPool2d(2))
        modules += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU()]
        model = nn.Sequential(*modules, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
        picture = torch.empty(1, 3, 224, 224)
    assert shapes(model) == [p.shape for p in vgg16().users]
    assert counted_flops(lambda: model(picture)) == vgg16().flops


def test_resnet50_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def unit(before: int, after: int, kernel: int, stride: int = 1) -> list[Any]:
        conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        return [conv, nn.BatchNorm2d(after)]

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, before: int, inner: int, stride: int) -> None:
            super().__init__()
            narrow, wide = unit(before, inner, 1), unit(inner, 4 * inner, 1)
            self.way = nn.Sequential(*narrow, *unit(inner, inner, 3, stride), *wide)
            same = before == 4 * inner and stride == 1
            self.short = nn.Sequential(*([] if same else unit(before, 4 * inner, 1, stride)))

        def forward(self, x: Any) -> Any:
            return self.way(x) + self.short(x)

    with torch.device("meta"):
        modules = [*unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        before = 64
        for inner, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for block in range(count):
                modules.append(Block(before, inner, 2 if block == 0 and inner > 64 else 1))
                before = 4 * inner
        end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
        model = nn.Sequential(*modules, *end)
        picture = torch.empty(1, 3, 224, 224)
    assert shapes(model) == [p.shape for p in resnet50().users]
    assert counted_flops(lambda: model(picture)) == resnet50().flops


def test_a_layer_of_bert_is_torchs_encoder_layer() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    with torch.device("meta"):
        theirs = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
        text = torch.empty(1, 128, 1024)
    ours = of_block(bert_large(), "bert.encoder.layer.7.")
    queries_keys_values = [shape for shape in shapes(theirs) if shape[0] == 3 * 1024]
    together = [(3 * rows, *rest) for rows, *rest in ours[:2]]
    assert together == queries_keys_values
    assert sorted([*together, *ours[6:]]) == sorted(shapes(theirs))
    operations = [o for o in bert_large().operations if o.name.startswith("bert.encoder.layer.7.")]
    assert counted_flops(lambda: theirs(text)) == sum(o.flops for o in operations)


def test_a_block_of_gpt2_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    with torch.device("meta"):
        block = nn.ModuleList(
            [
                nn.LayerNorm(768),
                nn.Linear(768, 3 * 768),
                nn.Linear(768, 768),
                nn.LayerNorm(768),
                nn.Linear(768, 4 * 768),
                nn.Linear(4 * 768, 768),
            ]
        )
    assert shapes(block) == of_block(gpt2(), "transformer.h.3.")


def test_the_transformer_is_torchs_but_for_biases_and_the_last_norms() -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        theirs = torch.nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    count = sum(math.prod(shape) for shape in shapes(theirs))
    biases, last_norms = 18 * 4 * 512, 2 * 2 * 512
    ours = transformer_base().parameter_count - 37_000 * 512
    assert ours + biases + last_norms == count
