"""Random jobs whose numbers are exact in binary, so that equal means equal."""

from hypothesis import strategies as st

from bytelane.job import Job, Layer, Tensor

# Multiples of 1/8 s: sums and differences of them are exact in floating point.
eighths = st.integers(0, 40).map(lambda n: n / 8)
positive_eighths = st.integers(1, 40).map(lambda n: n / 8)


@st.composite
def chains(draw: st.DrawFn, max_layers: int = 8) -> Job:
    """One tensor a layer at most; some layers have none."""
    count = draw(st.integers(1, max_layers))
    layers = tuple(
        Layer(f"l{i}", draw(positive_eighths), draw(positive_eighths)) for i in range(count)
    )
    sizes = draw(st.lists(st.integers(0, 64), min_size=count, max_size=count))
    tensors = tuple(Tensor(f"t{i}", size, (i,)) for i, size in enumerate(sizes) if size)
    return Job("chain", layers, tensors)


@st.composite
def jobs(draw: st.DrawFn, max_layers: int = 8, max_tensors: int = 10) -> Job:
    """Anything a job may be: tied tensors, several a layer, updates, time outside the model."""
    count = draw(st.integers(1, max_layers))
    layers = tuple(
        Layer(f"l{i}", draw(eighths), draw(positive_eighths), draw(eighths)) for i in range(count)
    )
    places = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    shapes = draw(st.lists(st.tuples(st.integers(1, 64), places), max_size=max_tensors))
    tensors = tuple(
        Tensor(f"t{i}", size, tuple(sorted(used))) for i, (size, used) in enumerate(shapes)
    )
    return Job("any", layers, tensors, draw(eighths))
