"""The wheel carries the program, the sdist what it is built from, and an editable install neither."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from govnode import _binary

ROOT = Path(__file__).resolve().parents[1]


def build(target: str, folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.iterdir())


def test_wheel_has_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho the program: $@\n")
    program.chmod(0o755)
    monkeypatch.setenv("GOVNODE_BINARY", str(program))
    wheel = build("wheel", tmp_path / "dist")
    assert "-py3-none-manylinux_2_17_" in wheel.name or sys.platform != "linux"
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as z:
        assert "Root-Is-Purelib: false" in z.read(next(n for n in z.namelist() if n.endswith("/WHEEL"))).decode()
        names = set(z.namelist())
        assert {"govnode/bin/govnode", "govnode/py.typed", "govnode/client.py"} <= names
        assert z.getinfo("govnode/bin/govnode").external_attr >> 16 & 0o100
        z.extractall(installed)
    (installed / "govnode/bin/govnode").chmod(0o755)
    monkeypatch.delenv("GOVNODE_BINARY")
    script = "from govnode import _binary; import sys; sys.argv[1:] = ['version']; _binary.main()"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(installed)}
    )
    assert run.stdout == "the program: version\n"


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go")
def test_sdist_has_what_the_program_is_built_from(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path / "dist")) as t:
        names = {n.partition("/")[2] for n in t.getnames()}
    assert {"go/go.mod", "go/go.sum", "go/cmd/govnode/main.go", "src/govnode/client.py", "hatch_build.py"} <= names
    assert not any(n.endswith("_test.go") for n in names)


def test_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOVNODE_BINARY", "/somewhere/govnode")
    assert _binary.find() == "/somewhere/govnode"
    monkeypatch.delenv("GOVNODE_BINARY")
    program, script = tmp_path / "a" / "govnode", tmp_path / "b" / "govnode"
    for path, text in ((program, b"\x7fELF"), (script, b"#!/usr/bin/python")):
        path.parent.mkdir()
        path.write_bytes(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{program.parent}")
    built = ROOT.parent / "bin" / "govnode"
    assert _binary.find() == str(built if built.exists() else program)
