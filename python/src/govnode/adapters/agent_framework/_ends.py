"""How calls of agents and models end, whole or streamed, and what ends a run."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_framework import MiddlewareFailure, ResponseStream

from .._gate import Killed, Passage, PolicyViolationError

_MOST_TOLD = 1000
_told: OrderedDict[str, None] = OrderedDict()


def told(text: str) -> str:
    """Note why something was denied, as a model is told it: it may quote what is blocked, and is not looked at."""
    _told[text] = None
    while len(_told) > _MOST_TOLD:
        _told.popitem(last=False)
    return text


def was_told(text: str) -> bool:
    """Report whether a text is exactly one of those."""
    return text in _told


def failure(why: Passage | Exception) -> MiddlewareFailure:
    """Return what ends a run, with what it comes from."""
    if isinstance(why, Passage):
        assert why.denied is not None
        ends = MiddlewareFailure(why.text)
        ends.__cause__ = Killed(why.denied) if why.killed else PolicyViolationError(why.denied)
        return ends
    return why if isinstance(why, MiddlewareFailure) else MiddlewareFailure(f"govnode: no decision: {why}")


def ending(stream: Any, passage: Passage, settle: Callable[[Any], Any]) -> Any:
    """Return a stream whose end, whoever brings it about, ends a call. ``settle`` gets the whole response first."""

    async def pieces() -> AsyncIterator[Any]:
        try:
            async for piece in stream:
                yield piece
            settle(await stream.get_final_response())
        except BaseException as e:
            passage.end_behind("failed" if isinstance(e, Exception) else "cancelled")
            raise
        await passage.aend("succeeded")

    whole = pieces()
    governed: Any = ResponseStream(whole, finalizer=lambda _: stream.get_final_response())
    weakref.finalize(whole, passage.end_behind, "cancelled")  # if nobody begins to read it
    return governed


def tokens_of(response: Any) -> int | None:
    """Return how many tokens a response took; None if that is not known."""
    usage = getattr(response, "usage_details", None) or {}
    total = usage.get("total_token_count")
    if total is None:
        parts = [n for n in (usage.get("input_token_count"), usage.get("output_token_count")) if n is not None]
        total = sum(parts) if parts else None
    return None if total is None else int(total)
