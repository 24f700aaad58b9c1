"""Ids for calls to which their framework gives none: a call that waits for people is the same when it is made again."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ._gate import Gate, Passage

_MOST_WAITING = 1000


class Recall:
    """Asks a gate, under the id that the same call had when it was denied for want of an approval."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._run = gate.draw()
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, str] = OrderedDict()

    def enter(self, tool: str, arguments: Mapping[str, Any], *, kind: str = "tool", conversation: str = "") -> Passage:
        """Ask as ``Gate.enter`` does."""
        key, id = self._known(tool, arguments, conversation)
        return self._noted(
            key,
            id,
            self._gate.enter(
                tool, arguments, call_id=id, run_id=self._run, conversation=conversation, options={"kind": kind}
            ),
        )

    async def aenter(
        self, tool: str, arguments: Mapping[str, Any], *, kind: str = "tool", conversation: str = ""
    ) -> Passage:
        """Ask as ``enter`` does."""
        key, id = self._known(tool, arguments, conversation)
        return self._noted(
            key,
            id,
            await self._gate.aenter(
                tool, arguments, call_id=id, run_id=self._run, conversation=conversation, options={"kind": kind}
            ),
        )

    def _known(self, tool: str, arguments: Mapping[str, Any], conversation: str) -> tuple[str, str]:
        key = f"{conversation} {tool} {json.dumps(arguments, sort_keys=True, default=str)}"
        with self._lock:
            return key, self._waiting.pop(key, "") or self._gate.draw()

    def _noted(self, key: str, id: str, passage: Passage) -> Passage:
        if passage.denied is not None and passage.denied.outcome == "APPROVAL_REQUIRED":
            with self._lock:
                self._waiting[key] = id
                while len(self._waiting) > _MOST_WAITING:
                    self._waiting.popitem(last=False)
        return passage
