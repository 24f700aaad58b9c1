"""The code of the pages runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import govnode

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(not _DOCS.is_dir(), reason="there are no pages beside an sdist")
@pytest.mark.parametrize("page", ["python-integration.md", "python.md"])
def test_page(client: govnode.Client, address: str, page: str) -> None:
    text = (_DOCS / page).read_text(encoding="utf-8").replace("127.0.0.1:7070", address)
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"client": client, "govnode": govnode}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if names["client"] is not client:
        names["client"].close()
