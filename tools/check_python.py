"""Say in one sentence why a virtual environment cannot be made, before it fails in many."""

import importlib.util
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (it is older Pythons that this is for)
    sys.exit(
        "bytelane needs Python 3.11 or newer, and this is "
        f"{sys.version.split()[0]}; name another one with: make PYTHON=python3.11 ..."
    )
for module in ("venv", "ensurepip"):
    if importlib.util.find_spec(module) is None:
        sys.exit(
            f"this Python has no module {module}, which makes virtual environments; "
            "on Debian or Ubuntu install it with: apt-get install python3-venv"
        )
