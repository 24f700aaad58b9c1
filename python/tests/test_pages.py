"""The code of the pages runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_credentials import made, secured

import govnode

_DOCS = Path(__file__).parents[2] / "docs"


def _blocks(page: str) -> list[tuple[str, str]]:
    """The code of a page, each block with the name of its file where it has one."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python(?: file=(\S+))?[^\n]*\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.skipif(not _DOCS.is_dir(), reason="there are no pages beside an sdist")
@pytest.mark.parametrize("page", ["python-integration.md", "python.md"])
def test_page(client: govnode.Client, address: str, page: str) -> None:
    blocks = [code for file, code in _blocks(page) if file != "secured.py"]
    assert blocks
    names: dict[str, Any] = {"client": client, "govnode": govnode}
    for block in blocks:
        exec(compile(block.replace("127.0.0.1:7070", address), page, "exec"), names)
    if names["client"] is not client:
        names["client"].close()


@pytest.mark.skipif(not _DOCS.is_dir(), reason="there are no pages beside an sdist")
def test_where_the_service_asks_who_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [code for file, code in _blocks("python.md") if file == "secured.py"]
    with secured(tmp_path) as (address, files):
        monkeypatch.chdir(tmp_path)  # where ca.crt is
        monkeypatch.setenv("GOVNODE_TLS_CA", files["ca"])
        token = made(f"https://{address}", "agent", "orchestrator", "policy-author", namespace="team-a")
        names: dict[str, Any] = {}
        code = block.replace("gov.example.com:7070", address).replace("gn_team-a.…", token)
        exec(compile(code, "secured.py", "exec"), names)
        with names["client"] as client:
            client.put_policy("name: careful\nmax_tool_calls: 2\n")
            with names["session"].call("search", {}) as call:
                assert call.admitted
            with pytest.raises(govnode.Rejected, match="not_found"), client.session(names["session"].id).call("x", {}):
                pass
