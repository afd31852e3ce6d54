"""Print a usage error in one sentence: the wrong value, and the nearest valid one."""

from typing import Any

import typer

from bytelane.values import nearest, shown

# typer has click's errors, or copies of them of its own; this one is the same in both.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def show_help(error: Any) -> bool:
    """Show the help of a verb that was given no arguments but needs some; else return False."""
    if type(error).__name__ != "NoArgsIsHelpError":
        return False
    if error.message.strip():  # or it is on the screen already
        error.show()
    return True


def sentence(error: Any) -> str:
    """Return what is wrong with the arguments, and which --help tells what is right."""
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
    """Return the message of the error; add the value where the message leaves it out."""
    said: str = error.format_message()
    details = getattr(error.__cause__, "errors", None)
    if details is None or getattr(error, "param", None) is None:
        return said
    value, option = shown(details()[0].get("input")), error.param.opts[0]
    named = str(error.message).replace("Input", value, 1)
    return f"{option}: {named}" if value in named else f"{option}: {value}: {named}"
