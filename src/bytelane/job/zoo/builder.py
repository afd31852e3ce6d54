"""Build model architectures by calls that read like a forward pass and compute only shapes.

Each method takes the shape of its input, records one operation and returns the shape of its output;
so a branch is a variable, as in the model's own code. Names are those of the reference
implementation, so that a job can be compared with a measured one.

An operation is recorded for every layer with parameters, and for attention, whose two products have
none but cost as much as a projection. Activations, residual sums, pooling, dropout and the loss
cost next to no arithmetic, and no scheduler can tell them from their neighbours: their time is part
of the accelerator's efficiency factor.

Published counts leave out normalisations, look-ups and biases, so they are 0 FLOPs here as well.
Memory decides how long the first two take.
"""

from bytelane.job.zoo.network import Image, Network, Operation, Parameter, Rows


class Builder:
    """Records operations in the order in which its methods are called."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []

    def network(self, sample: str) -> Network:
        """Return the recorded operations; ``sample`` says what one sample of a batch is."""
        return Network(sample, tuple(self._operations))

    def conv(
        self,
        name: str,
        x: Image,
        channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = False,
    ) -> Image:
        """Convolve; unless told otherwise the padding is half the kernel, which keeps the size."""
        down, across = (kernel, kernel) if isinstance(kernel, int) else kernel
        above, left = (down // 2, across // 2) if padding is None else (padding, padding)
        out = Image(
            channels,
            (x.height + 2 * above - down) // stride + 1,
            (x.width + 2 * left - across) // stride + 1,
        )
        weight = Parameter(f"{name}.weight", (channels, x.channels, down, across))
        flops = 2 * out.elements * x.channels * down * across
        self._weighted(name, weight, channels if bias else 0, flops, x.elements + out.elements)
        return out

    def batch_norm(self, name: str, x: Image) -> Image:
        """Normalise each channel: one pass for the statistics, one to read, one to write."""
        self._norm(name, x.channels, 3 * x.elements)
        return x

    def layer_norm(self, name: str, x: Rows) -> Rows:
        """Normalise each row, which is short enough to be read only once."""
        self._norm(name, x.width, 2 * x.elements)
        return x

    def linear(
        self, name: str, x: Rows, width: int, *, bias: bool = True, weight: Parameter | None = None
    ) -> Rows:
        """Multiply each row by a matrix; ``weight`` ties it to one that is there already."""
        weight = weight or Parameter(f"{name}.weight", (width, x.width))
        assert weight.shape == (width, x.width), weight
        out = Rows(x.length, width)
        flops = 2 * x.length * weight.count
        self._weighted(name, weight, width if bias else 0, flops, x.elements + out.elements)
        return out

    def embedding(self, name: str, tokens: int, table: Parameter) -> Rows:
        """Look tokens up. Only their rows of the table are read, but its whole gradient is sent."""
        x = Rows(tokens, table.shape[1])
        self._operations.append(Operation(name, (table,), 0, 2 * x.elements, 0))
        return x

    def attention(self, name: str, queries: Rows, keys: Rows, heads: int) -> Rows:
        """Compare every query with every key and mix the values; a causal mask saves nothing.

        The scores are written, read and written by softmax, and read again: no fused kernel.
        """
        scores = queries.length * keys.length
        flops = 2 * 2 * scores * queries.width
        moved = 2 * queries.elements + 2 * keys.elements + 4 * heads * scores
        self._operations.append(Operation(name, (), flops, moved, 0))
        return queries

    def _norm(self, name: str, size: int, moved: int) -> None:
        self._weighted(name, Parameter(f"{name}.weight", (size,)), size, 0, moved)

    def _weighted(self, name: str, weight: Parameter, bias: int, flops: int, moved: int) -> None:
        biases = (Parameter(f"{name}.bias", (bias,)),) if bias else ()
        parameters = (weight, *biases)
        read = sum(parameter.count for parameter in parameters)
        self._operations.append(Operation(name, parameters, flops, moved, read))
