"""Configure Sphinx: Markdown pages, with tables and pictures generated from the code."""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generators import write_all  # noqa: E402

import bytelane  # noqa: E402

project = "Bytelane"
author = "the Bytelane contributors"
version = release = bytelane.__version__
copyright = author  # noqa: A001  (Sphinx wants this name)

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
exclude_patterns = ["generated/*.md"]
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"Bytelane {release}"
html_copy_source = False
html_static_path: list[str] = []


def setup(app: Any) -> None:
    """Generate tables and pictures before Sphinx reads the pages."""
    app.connect("builder-inited", lambda app: write_all(HERE / "generated"))
