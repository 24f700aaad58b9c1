"""The program ``govnode``: where it is, and how it is started in the place of this process."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find() -> str:
    """Return the path of the program: GOVNODE_BINARY, that of the wheel, that of a checkout, or that on the PATH."""
    if named := os.environ.get("GOVNODE_BINARY"):
        return named
    here = Path(__file__).resolve().parent
    packaged, built = here / "bin" / "govnode", here.parents[2] / "bin" / "govnode"
    for path in (packaged, built if (here.parents[2] / "go.mod").exists() else packaged):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    itself = Path(sys.argv[0]).resolve()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        on_path = shutil.which("govnode", path=folder)
        if on_path and Path(on_path).resolve() != itself and not _is_script(on_path):
            return on_path
    raise FileNotFoundError(
        "govnode: the program is not here: install a wheel that has it, run `make build` in a checkout, "
        "or set GOVNODE_BINARY"
    )


def _is_script(path: str) -> bool:
    """Report whether it is a script that would look for the program itself."""
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def main() -> None:
    """Become the program."""
    try:
        binary = find()
    except FileNotFoundError as e:
        sys.exit(str(e))
    os.execv(binary, [binary, *sys.argv[1:]])
