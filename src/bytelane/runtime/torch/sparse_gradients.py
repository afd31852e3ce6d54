"""Row-sparse gradients of embeddings with ``sparse=True``, which only parameter servers carry.

As in DDP, the model's modules say which gradients are sparse; one that is dense in some iteration
is refused. Values are divided by the number of workers before duplicate rows are added up, each
rank coalesces its own, and the sum runs over the ranks in order: DDP on gloo does the same, so bits
agree with it on any number of workers.
"""

import numpy as np
import torch

from bytelane.runtime.ps.sparse_rows import RowSparse, Touched


class SparseGradient(RowSparse):
    """The gradient of one table: this rank's, then the mean over the ranks."""

    def __init__(self, gradient: torch.Tensor | None, table: torch.Tensor) -> None:
        super().__init__()
        self._gradient = gradient
        self._shape, self._dtype = table.shape, table.dtype

    def divided(self, workers: int) -> Touched:
        """Return the touched rows; the gradient stays as it is, since others may share its memory.

        None is an empty contribution.
        """
        if self._gradient is None:
            row_bytes = self._shape[1] * self._dtype.itemsize
            return Touched(np.zeros(0, np.int64), np.zeros((0, row_bytes), np.uint8))
        own = (self._gradient / workers).coalesce()
        values = own.values().contiguous().view(torch.uint8)
        return Touched(own.indices()[0].numpy(), values.numpy())

    def mean(self) -> torch.Tensor:
        """Return the mean that has arrived: sparse, coalesced."""
        indices, rows = self.summed()
        values = torch.from_numpy(rows).view(self._dtype)
        return torch.sparse_coo_tensor(
            torch.from_numpy(indices)[None],
            values,
            self._shape,
            is_coalesced=True,
            check_invariants=False,
        )


def sparse_tables(model: torch.nn.Module) -> dict[int, str]:
    """Return the ids of parameters that get sparse gradients, and the modules that make them."""
    return {
        id(module.weight): path or "the model"
        for path, module in model.named_modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        and module.sparse
        and module.weight.requires_grad
    }


def sparse_problem(gradient: torch.Tensor, name: str, *, is_table: bool) -> str:
    """Return why a gradient cannot be summed as its module has announced it, or an empty text."""
    is_sparse = gradient.layout is not torch.strided
    if is_table and not is_sparse:
        return (
            f"the gradient of {name} is dense, although its embedding has sparse=True; use it for "
            "lookups only, or build it with sparse=False"
        )
    if is_sparse and not is_table:
        return (
            f"the gradient of {name} is sparse, but it is no weight of an Embedding or "
            "EmbeddingBag with sparse=True; only those are summed row by row"
        )
    if is_sparse and (gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1):
        return f"the gradient of {name} is sparse in another way than by rows"
    return ""
