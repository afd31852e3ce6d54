"""``bytelane policies``: list the policies, and the knobs that each of them declares."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bytelane.cli.options import Json
from bytelane.cli.output import print_json
from bytelane.terminal import one_line, show

if TYPE_CHECKING:
    from bytelane.core.policy import Entry


def policies(
    name: Annotated[
        str | None, typer.Argument(help="Show this policy and its knobs.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the policies that every command knows by name, or the knobs of one of them.

    A knob is given as --knob NAME=VALUE, the familiar ones also as --partition, --credit and
    --fusion. Example: bytelane policies units
    """
    from bytelane.core import policy_entry, policy_names
    from bytelane.plugins import load_policies, look_for

    if name is not None:
        look_for(name)
        entry = policy_entry(name)
        if as_json:
            print_json(_document(name, entry))
        else:
            _print_one(name, entry)
        return
    load_policies()
    entries = {each: policy_entry(each) for each in policy_names()}
    if as_json:
        print_json([_document(each, entry) for each, entry in entries.items()])
        return
    for each, entry in entries.items():
        show(one_line(f"{each:<14}{entry.doc}"))
        knobs = ", ".join(knob.name for knob in entry.knobs) or "none"
        show(f"{'':<14}for {' and '.join(entry.sync)}; knobs: {knobs}")


def _print_one(name: str, entry: "Entry") -> None:
    show(one_line(f"{name}, for {' and '.join(entry.sync)}: {entry.doc}"))
    for knob in entry.knobs:
        show("\n  " + one_line(f"{knob.name}: {knob.help}"))
        show(f"    default {knob.default_in_words}, range {knob.range_in_words}")
    if not entry.knobs:
        show("\n  It has no knobs.")


def _document(name: str, entry: "Entry") -> dict[str, Any]:
    return {
        "policy": name,
        "sync": entry.sync,
        "about": entry.doc,
        "knobs": [
            {
                "knob": knob.name,
                "key": knob.key,
                "kind": knob.kind,
                "default": knob.default,
                "times": knob.times or None,
                "least": knob.least,
                "most": knob.most,
                "about": knob.help,
            }
            for knob in entry.knobs
        ],
    }
