"""The code of the pages runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import govnode

_DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.skipif(not _DOCS.is_dir(), reason="there are no pages beside an sdist")
@pytest.mark.parametrize("page", ["python-integration.md"])
def test_page(client: govnode.Client, page: str) -> None:
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", (_DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"client": client, "govnode": govnode}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
