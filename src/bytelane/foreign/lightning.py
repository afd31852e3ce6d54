"""The private name of Lightning that Bytelane uses, with a self-check and a fallback."""

from typing import Any

from bytelane.foreign.names import Name, find
from bytelane.foreign.names import replaced as _replaced

NAMES = (
    Name(
        "lightning.pytorch.strategies.strategy._ForwardRedirection",
        "bytelane itself calls training_step in place of forward",
        True,
    ),
)


def replaced() -> list[str]:
    """Return a sentence for each name that this version of Lightning lacks."""
    return _replaced(f"lightning {find('lightning.__version__')}", NAMES)


def call_as_forward(
    strategy: Any, module: Any, method: str, *arguments: Any, **keywords: Any
) -> Any:
    """Call a method of a module through the module's own call, so that its hooks run."""
    redirect = getattr(strategy, "_forward_redirection", None)
    if redirect is not None:
        return redirect(module, module, method, *arguments, **keywords)
    own_forward = vars(module).get("forward")

    def restore() -> None:
        if own_forward is None:
            vars(module).pop("forward", None)
        else:
            module.forward = own_forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        restore()  # the method may call the module's own forward
        return getattr(module, method)(*arguments, **keywords)

    module.forward = forward
    try:
        return module(*arguments, **keywords)
    finally:
        restore()
