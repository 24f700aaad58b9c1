"""The hook of the build: a wheel carries the program, an sdist its Go sources, and an editable install neither."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_GO = ["-buildvcs=false", "-tags", "hashicorpmetrics"]
# For each package of the module: its folder, its files for all platforms, and what they embed.
_FILES = (
    '{{if not .Standard}}{{with .Module}}{{if .Main}}{{$.Dir}}\t{{join $.GoFiles " "}} {{join $.IgnoredGoFiles " "}} '
    '{{join $.EmbedFiles " "}}{{end}}{{end}}{{end}}'
)


class Hook(BuildHookInterface[Any]):
    """Builds the program with Go, or takes the one that GOVNODE_BINARY names."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add to the build what does not stand in its folder."""
        if self.target_name == "sdist":
            build_data["force_include"].update({str(p): f"go/{r}" for r, p in self._sources().items()})
        elif version != "editable":
            build_data["force_include"][self._program()] = "govnode/bin/govnode"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built for this alone."""
        if built := getattr(self, "_built", None):
            shutil.rmtree(built)

    def _go(self) -> Path:
        """Return the folder of the Go module: that of the checkout, or that of the sdist."""
        for folder in (Path(self.root) / "go", Path(self.root).parent):
            if (folder / "go.mod").is_file():
                return folder
        raise FileNotFoundError("govnode: there are no Go sources here; set GOVNODE_BINARY to a program that was built")

    def _program(self) -> str:
        if named := os.environ.get("GOVNODE_BINARY"):
            return str(Path(named).resolve())
        if shutil.which("go") is None:
            raise FileNotFoundError("govnode: building the wheel needs Go, or GOVNODE_BINARY")
        self._built = tempfile.mkdtemp()
        program = str(Path(self._built) / "govnode")
        self._run(["build", *_GO, "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/govnode"])
        return program

    def _sources(self) -> dict[str, Path]:
        """Return the files that the program is built from, by their names in the module."""
        go = self._go()
        if go.name == "go" and go.parent == Path(self.root):  # an sdist of an sdist
            return {str(p.relative_to(go)): p for p in go.rglob("*") if p.is_file()}
        listed = self._run(["list", *_GO, "-deps", "-f", _FILES, "./cmd/govnode"])
        found = {name: go / name for name in ("go.mod", "go.sum")}
        for line in listed.splitlines():
            folder, _, files = line.partition("\t")
            for file in (f for f in files.split() if not f.endswith("_test.go")):
                path = Path(folder) / file
                found[str(path.relative_to(go))] = path
        return found

    def _run(self, command: list[str]) -> str:
        """Run a command of Go."""
        static = {**os.environ, "CGO_ENABLED": "0"}
        return subprocess.run(
            ["go", *command], cwd=self._go(), check=True, stdout=subprocess.PIPE, text=True, env=static
        ).stdout


def _platform() -> str:
    """Return the tag of what a static program runs on. A bare linux_x86_64 could not be published."""
    machine = platform.machine().lower()
    if sys.platform == "linux":
        return f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
    if sys.platform == "darwin":
        return f"macosx_11_0_{machine}"
    raise RuntimeError(f"govnode: no wheel is built on {sys.platform}")
