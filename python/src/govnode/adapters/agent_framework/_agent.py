"""Runs of agents: each is a call of the kind ``agent``, and so is each round of a loop that stands before this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agent_framework import (
    AgentMiddleware,
    AgentResponse,
    AgentResponseUpdate,
    Content,
    Message,
    MiddlewareTermination,
    ResponseStream,
)

from .._gate import Gate, Sessions
from ._ends import ending, failure


class GovnodeAgentMiddleware(AgentMiddleware):
    """Makes a call of the kind ``agent`` of each run. ``max_agent_calls`` of a policy bounds them.

    It stands behind an AgentLoopMiddleware, whose rounds are runs then: a run that is denied ends the loop, and its
    text says why. The run of a killed session ends with MiddlewareFailure, and so does with ``on_denied="raise"`` each
    run that is denied. ``session`` and ``options`` are those of ``GovnodeMiddleware``.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)
        self._raises = self.gate.on_denied == "raise"
        self.gate.on_denied = "tell"

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Ask, run the agent, and report its end."""
        session = context.session
        try:
            passage = await self.gate.aenter(
                context.agent.name or context.agent.id,
                {"messages": [m.text for m in context.messages]},
                conversation=session.session_id if session is not None else "",
                options={"kind": "agent"},
            )
        except Exception as e:
            raise failure(e) from e
        if passage.denied is not None:
            if passage.killed or self._raises:
                raise failure(passage)
            context.result = _said(passage.text, context.stream)
            raise MiddlewareTermination(passage.text, result=context.result)
        try:
            await call_next()
        except BaseException as e:
            passage.end_behind("failed" if isinstance(e, Exception) else "cancelled")
            raise
        if isinstance(context.result, ResponseStream):
            context.result = ending(context.result, passage, lambda _: None)
        else:
            await passage.aend("succeeded", getattr(context.result, "text", None))


def _said(text: str, stream: bool) -> Any:
    if not stream:
        return AgentResponse(messages=[Message(role="assistant", contents=[Content.from_text(text)])])

    async def pieces() -> Any:
        yield AgentResponseUpdate(role="assistant", contents=[Content.from_text(text)])

    return ResponseStream(pieces(), finalizer=AgentResponse.from_updates)
