"""What was typed wrongly, in one sentence: the value, and what is nearest to it."""

from typing import Any

import typer

from bytelane.values import nearest, shown

# typer has click's errors, or copies of them of its own; this one is the same in both.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def show_help(error: Any) -> bool:
    """Answer with its help where a verb that needs more words was given none; else return False."""
    if type(error).__name__ != "NoArgsIsHelpError":
        return False
    if error.message.strip():  # or it is on the screen already
        error.show()
    return True


def sentence(error: Any) -> str:
    """Say what is wrong with what was typed, and where to read what would be right."""
    context = error.ctx
    command = context.command_path if context else "bytelane"
    if type(error).__name__ == "NoSuchOption":
        name = error.option_name
        known = [] if context is None else [word for p in context.command.params for word in p.opts]
        said = f"there is no option {shown(name)}{nearest(name, known)}"
    else:
        said = _with_value(error)
    said = " ".join(said.split()).removesuffix(".")
    return f"{said[:1].lower()}{said[1:]} ({command} --help tells more)"


def _with_value(error: Any) -> str:
    """Repeat the complaint; one that leaves the value out gets it back."""
    said: str = error.format_message()
    details = getattr(error.__cause__, "errors", None)
    if details is None or getattr(error, "param", None) is None:
        return said
    value, option = shown(details()[0].get("input")), error.param.opts[0]
    named = str(error.message).replace("Input", value, 1)
    return f"{option}: {named}" if value in named else f"{option}: {value}: {named}"
