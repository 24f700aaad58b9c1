"""What MCP servers ask of the model: calls of the kind ``sampling``, by the label of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .._gate import Gate, PolicyViolationError, Sessions


def sampling(session: Sessions, server: str, **options: Any) -> Callable[[Any], Awaitable[bool]]:
    """Return what an MCP tool takes as ``sampling_approval_callback``: True where the service admits the request.

    ``max_sampling_requests`` of a policy bounds them, for each server and over all processes. ``server`` is the label
    under which it is counted. Where there is no decision it is a no.
    """
    gate = Gate(session, **options)

    async def approved(params: Any) -> bool:
        asks: dict[str, Any] = {"messages": [_text(m) for m in params.messages], "max_tokens": _most(params)}
        # The model gets these words of the server too.
        if system := getattr(params, "system_prompt", None) or getattr(params, "systemPrompt", None):
            asks["system_prompt"] = str(system)
        if tools := getattr(params, "tools", None):
            asks["tools"] = {t.name: t.description or "" for t in tools}
        try:
            passage = await gate.aenter(server, asks, options={"kind": "sampling", "server_label": server})
        except PolicyViolationError:
            return False
        if passage.denied is not None:
            return False
        await passage.aend("succeeded")  # what the framework makes of it then is not seen here
        return True

    return approved


def _text(message: Any) -> str:
    contents = message.content if isinstance(message.content, list) else [message.content]
    return "\n".join(str(getattr(c, "text", type(c).__name__)) for c in contents)


def _most(params: Any) -> int:
    return int(getattr(params, "max_tokens", None) or getattr(params, "maxTokens", None) or 0)
