"""Install this package and the named extras here, at the tested versions."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(extras: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(_pins(keep_torch="torch" in extras))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--constraint", str(constraints), "--editable", f"{ROOT}[{','.join(extras)}]"]
        print(f"installing bytelane[{','.join(extras)}] (a few minutes the first time)", flush=True)
        status = subprocess.run(command, env=os.environ, check=False).returncode
    if status:
        print(
            "the installation failed; if a package had to be compiled, it needs a C++ compiler "
            "(apt-get install g++) and Python's headers (apt-get install python3-dev)",
            file=sys.stderr,
        )
    return status


def _pins(*, keep_torch: bool) -> str:
    """Leave torch's pin out where an installed torch is used: pip must not replace it."""
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if keep_torch or not line.startswith("torch=="))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
