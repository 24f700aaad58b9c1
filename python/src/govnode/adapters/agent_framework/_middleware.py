"""Tools. This middleware belongs last: what stands behind it could still change the arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from agent_framework import Content, FunctionMiddleware

from ..._review import written
from .._gate import Gate, Passage, Sessions
from ._approvals import GovnodeApprovals, asked, plain
from ._ends import failure, told


class GovnodeMiddleware(FunctionMiddleware):
    """Asks govnode before each tool call, and ends the call with the tool.

    ``session`` is a session, or a function that returns that of an AgentSession by its id (empty if there is none).
    With ``approvals`` a call that people are asked about becomes a prompt of the framework. The arguments of ``Gate``
    may follow. The model reads why a tool is denied. MiddlewareFailure, which alone is not taken for an error of the
    tool, ends the run of a session that is killed, and with ``on_denied="raise"`` every run whose tool is denied; its
    cause is what the gate says.
    """

    def __init__(self, session: Sessions, *, approvals: GovnodeApprovals | None = None, **options: Any) -> None:
        self.gate = Gate(session, **options)
        self._approvals = approvals
        self._raises = self.gate.on_denied == "raise"
        self.gate.on_denied = "tell"  # whether a prompt comes of it is known here alone

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Ask, run the tool with the arguments that are allowed, and report its end."""
        try:
            run = self._approvals.run_of(context) if self._approvals is not None else ""
            passage = await self._ask(context, run)
            if self._approvals is not None and asked(passage):
                if await self._approvals.answered(context, passage.denied.approval):
                    passage = await self._ask(context, run)
                if asked(passage) and (
                    prompt := self._approvals.prompt(context, passage.denied.approval, self.gate.run)
                ):
                    context.result = prompt
                    return
        except Exception as e:  # any but a MiddlewareFailure would be an error of the tool to the model
            raise failure(e) from e
        if passage.denied is not None:
            if passage.killed or self._raises:
                raise failure(passage)
            context.result = told(passage.text)
            return
        if passage.changed:
            context.arguments = passage.arguments

        async def work() -> Any:
            await call_next()
            return context.result

        context.result = await passage.arun(work, threaded=_threaded(context.function), seen=_seen, told=_told)

    async def _ask(self, context: Any, run: str) -> Passage:
        session = context.session
        return await self.gate.aenter(
            context.function.name,
            plain(context.arguments),
            call_id=context.metadata.get("call_id", ""),
            run_id=run,
            conversation=session.session_id if session is not None else "",
            known_by=context,
        )


def _seen(result: Any) -> Any:
    """Return what a model sees of a result: its texts, and all else that it is made of."""
    if not _is_content(result):
        return result
    parts = result if isinstance(result, list) else [result]
    return "\n".join(p.text or "" if p.type == "text" else json.dumps(p.to_dict(), default=str) for p in parts)


def _told(result: Any, shown: Any) -> Any:
    return [Content.from_text(written(shown))] if _is_content(result) else shown


def _is_content(result: Any) -> bool:
    parts = result if isinstance(result, list) else [result]
    return bool(parts) and all(isinstance(p, Content) for p in parts)


def _threaded(function: Any) -> bool:
    """Report whether a tool is a synchronous one, which runs on in its thread when its task is cancelled."""
    body = getattr(function, "func", None)
    body = getattr(body, "func", body)
    if body is None or getattr(function, "_invoke_sync_on_event_loop", False):
        return False
    return not inspect.iscoroutinefunction(body)
