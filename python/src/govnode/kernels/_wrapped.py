"""What the deprecated ``wrap`` of a kernel returns: the agent, with some of its methods governed (section 18)."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..integration import ExecutionContext, FrameworkKernel, PolicyViolationError

MOST_DEPTH = 3  # agents in agents

# Whose methods run here, from the outermost on.
_running: contextvars.ContextVar[tuple[ExecutionContext, ...]] = contextvars.ContextVar("govnode_running", default=())


class Wrapped:
    """An agent, and the context in which it is governed. What is not governed is the agent's own."""

    def __init__(self, kernel: FrameworkKernel, agent: Any, ctx: ExecutionContext) -> None:
        self._kernel = kernel
        self._agent = agent
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)


@contextmanager
def delegated(ctx: ExecutionContext) -> Iterator[tuple[ExecutionContext, ...]]:
    """Run an agent of a context, and give the contexts that it runs in. Too deep raises PolicyViolationError."""
    outer = _running.get()
    if len(outer) >= MOST_DEPTH:
        raise PolicyViolationError(
            f"{ctx.agent_id}: agents run {MOST_DEPTH} deep already: {', '.join(o.agent_id for o in outer)}",
            category="delegation_depth",
        )
    if outer and ctx._parent is None:
        ctx._parent = outer[-1].session_id
    token = _running.set((*outer, ctx))
    try:
        yield outer
    finally:
        _running.reset(token)
