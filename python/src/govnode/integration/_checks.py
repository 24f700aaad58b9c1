"""What a check is about, who makes it, and which call it ends."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import Error
from .values import ExecutionContext, PolicyCheckResult, ToolCallRequest, logger

if TYPE_CHECKING:
    from ..client import Call


class Caller:
    """Whoever waits for the answer to a check, and the call that it got."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.gone = False
        self.call: Call | None = None


def give_back(call: Call) -> None:
    """End a call that nobody waits for any more."""
    try:
        call.end("cancelled")
    except Error as e:  # its lease runs out
        logger.warning("govnode: call %s was not given back: %s", call.id, e)


def owner_now() -> object:
    """Return the task that runs, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()


def take(ctx: ExecutionContext, owner: object) -> Call | None:
    """Take the call that is ended now from those that are open."""
    with ctx._lock:
        for i in range(len(ctx._open) - 1, -1, -1):
            if ctx._open[i][0] is owner:
                return ctx._open.pop(i)[1]
        return ctx._open.pop(0)[1] if ctx._open else None


# For whom a check is made on another thread.
_asking: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("govnode_asking", default=None)


async def asked_for(
    caller: Caller, check: Callable[..., PolicyCheckResult], *args: Any, **named: Any
) -> PolicyCheckResult:
    """Make a check on a thread."""
    token = _asking.set(caller)
    try:
        return await asyncio.to_thread(check, *args, **named)
    finally:
        _asking.reset(token)


def caller_now() -> Caller:
    """Return for whom this check is made: whoever has had it made on this thread, or else what runs."""
    caller = _asking.get()
    _asking.set(None)  # what the check calls in turn is its own
    return caller or Caller(owner_now())


def request_of(ctx: ExecutionContext, input_data: Any) -> ToolCallRequest:
    """Return what is executed as a request. What is no call of a tool has no tool."""
    if isinstance(input_data, ToolCallRequest):
        return replace(input_data, agent_id=input_data.agent_id or ctx.agent_id)
    if isinstance(input_data, dict):
        return ToolCallRequest("", dict(input_data), agent_id=ctx.agent_id)
    return ToolCallRequest("", {} if input_data is None else {"input": str(input_data)}, agent_id=ctx.agent_id)


def kind_of(input_data: Any) -> str:
    """Return the kind of call that something is where nobody says."""
    return "tool" if isinstance(input_data, ToolCallRequest) else "model"


def confidence_of(input_data: Any) -> Any:
    """Return how sure the agent says it is, or None. Of a mapping only a number says that."""
    if isinstance(input_data, ToolCallRequest):
        return input_data.metadata.get("confidence")
    if isinstance(input_data, dict):
        said = input_data.get("confidence")
        return said if isinstance(said, (int, float)) and not isinstance(said, bool) else None
    return getattr(input_data, "confidence", None)
