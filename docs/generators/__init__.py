"""Generate tables and pictures from the code whenever the docs are built."""

from pathlib import Path

from generators.cli import cli_reference
from generators.pictures import draw_explained, draw_idea, draw_price_of_parts
from generators.states import draw_states
from generators.tables import contract_rules, experiment_table, policy_table
from generators.tensor_states import draw_tensor_states


def write_all(folder: Path) -> None:
    """Write every file that the pages include."""
    folder.mkdir(exist_ok=True)
    pages = {
        "cli.md": cli_reference(),
        "contract.md": contract_rules(),
        "experiments.md": experiment_table(),
        "policies.md": policy_table(),
    }
    for name, text in pages.items():
        (folder / name).write_text(text)
    draw_idea(folder)
    draw_price_of_parts(folder / "price-of-parts.svg")
    draw_explained(folder / "timeline.svg")
    draw_states(folder / "states.svg")
    draw_tensor_states(folder / "tensor-states.svg")
