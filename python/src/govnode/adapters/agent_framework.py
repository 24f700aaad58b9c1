"""Microsoft Agent Framework: a function middleware.

    from govnode.adapters.agent_framework import GovnodeMiddleware

    agent = Agent(client=client, tools=[...], middleware=[..., GovnodeMiddleware(session)])

It belongs last: what stands behind it could still change the arguments. An agent that is used as a tool is a call; its
own tools need the middleware too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ._gate import Gate, Killed, PolicyViolationError, Sessions, missing

try:
    from agent_framework import FunctionMiddleware, MiddlewareFailure
except ImportError as e:
    raise missing("Microsoft Agent Framework", "agent-framework") from e


class GovnodeMiddleware(FunctionMiddleware):
    """Asks govnode before each tool call, and ends the call with the tool.

    ``session`` is a session, or a function that returns that of an AgentSession by its id (empty if there is none).
    The arguments of ``Gate`` may follow. The model reads why a tool is denied. MiddlewareFailure, which alone is not
    taken for an error of the tool, ends the run of a session that is killed, and with ``on_denied="raise"`` every run
    whose tool is denied; its cause is what the gate says.
    """

    def __init__(self, session: Sessions, **options: Any) -> None:
        self.gate = Gate(session, **options)

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        try:
            session = context.session
            passage = await self.gate.aenter(
                context.function.name,
                _plain(context.arguments),
                call_id=context.metadata.get("call_id", ""),
                conversation=session.session_id if session is not None else "",
                known_by=context,
            )
        except PolicyViolationError as e:
            raise MiddlewareFailure(str(e)) from e
        except Exception as e:  # any other exception would be an error of the tool to the model
            raise MiddlewareFailure(f"govnode: no decision: {e}") from e
        if passage.denied is not None:
            if passage.killed:
                raise MiddlewareFailure(passage.text) from Killed(passage.denied)
            context.result = passage.text
            return
        if passage.changed:
            context.arguments = passage.arguments

        async def work() -> Any:
            await call_next()
            return context.result

        await passage.arun(work, threaded=_threaded(context.function))


def _plain(arguments: Any) -> dict[str, Any]:
    """Return arguments as a mapping: a model of pydantic is one too."""
    if hasattr(arguments, "model_dump"):
        dumped: dict[str, Any] = arguments.model_dump()
        return dumped
    return dict(arguments or {})


def _threaded(function: Any) -> bool:
    """Report whether a tool is a synchronous one, which runs on in its thread when its task is cancelled."""
    body = getattr(function, "func", None)
    body = getattr(body, "func", body)
    if body is None or getattr(function, "_invoke_sync_on_event_loop", False):
        return False
    return not inspect.iscoroutinefunction(body)
