"""Integrate with Transformers: ``BytelaneTrainer(...)`` instead of ``Trainer(...)``."""

from functools import partial
from typing import Any, ClassVar

from bytelane.errors import MissingExtra
from bytelane.measure.patches import replaced

try:
    from transformers import Trainer, trainer

    from bytelane.integrations.accelerate import BytelaneAccelerator
except ImportError:
    raise MissingExtra(
        "this needs Transformers; install it with: pip install 'bytelane[transformers]'"
    ) from None


class BytelaneTrainer(Trainer):
    """A Trainer whose gradients Bytelane synchronises, without DDP.

    To change another trainer, put this class in front of it:
    ``class Mine(BytelaneTrainer, Seq2SeqTrainer)``. ``knobs`` go to :func:`bytelane.prepare`.
    """

    knobs: ClassVar[dict[str, Any]] = {}

    def create_accelerator_and_postprocess(self) -> None:
        """Let Trainer make Bytelane's accelerator, since it cannot be given one."""
        with replaced(trainer, "Accelerator", partial(BytelaneAccelerator, knobs=self.knobs)):
            super().create_accelerator_and_postprocess()
