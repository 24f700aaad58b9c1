"""Texts of a conversation: they come again with each request to the model, and are looked at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from ..integration import ExecutionContext, FrameworkKernel
from ..integration.hooks import KernelSession

_MOST_KEPT = 10_000


class Texts:
    """Has texts looked at for a context, each once."""

    def __init__(self, kernel: FrameworkKernel, session: KernelSession) -> None:
        self._kernel = kernel
        self._ctx: ExecutionContext = session.ctx
        self._refusals = session.refusals
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, str] = OrderedDict()

    def heed(self) -> None:
        """Raise PolicyViolationError where the kernel is stopped or killed."""
        self._kernel.heed(self._ctx, "input")

    def given(self, text: str) -> str:
        """Return a text for the model as it may be used. Raises PolicyViolationError where it may not be."""
        return self._once(text, lambda t: self._kernel.look(self._ctx, t, "input"))

    def made(self, text: str, tool: str = "") -> str:
        """Return a text that a model or a tool made, as it may be used."""
        return self._once(text, lambda t: self._kernel.look(self._ctx, t, "output", tool))

    def refuse(self, reason: object) -> str:
        """Return what the model is told of a denial."""
        refusal = f"Denied by govnode: {reason}"
        self._refusals.append(refusal)
        return refusal

    def _once(self, text: str, look: Callable[[str], str]) -> str:
        if not text:
            return text
        rest = self._without_refusals(text)
        if rest != text and (not rest or look(rest) == rest):
            return text
        with self._lock:
            known = self._seen.get(text)
        if known is not None:
            return known
        used = look(text)
        with self._lock:
            self._seen[text] = self._seen[used] = used
            while len(self._seen) > _MOST_KEPT:
                self._seen.popitem(last=False)
        return used

    def _without_refusals(self, text: str) -> str:
        """Return a text without what was said to the model of denials, where a framework has put that into it."""
        for refusal in list(self._refusals):
            text = text.replace(refusal, "")
        return text
