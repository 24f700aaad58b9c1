"""Agents of Microsoft Agent Framework whose model says what a script says."""

from __future__ import annotations

import json
from typing import Any

import agent_framework
from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Says one step of a script for each request: a text, calls of tools, or contents as they are."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__()
        self.script, self.turn = script, 0
        self.read: list[list[Message]] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        self.read.append(list(messages))
        contents = self._contents()
        usage = {"input_token_count": 3, "output_token_count": 4, "total_token_count": 7}

        async def whole() -> Any:
            return ChatResponse(messages=[Message(role="assistant", contents=contents)], usage_details=usage)

        async def pieces() -> Any:
            for content in contents:
                yield ChatResponseUpdate(role="assistant", contents=[content])
            yield ChatResponseUpdate(role="assistant", contents=[Content.from_usage(usage)])

        return ResponseStream(pieces(), finalizer=ChatResponse.from_updates) if stream else whole()

    def _contents(self) -> list[Any]:
        step, n = self.script[self.turn], self.turn
        self.turn += 1
        if isinstance(step, str):
            return [Content.from_text(step)]
        return [
            c
            if isinstance(c, Content)
            else Content.from_function_call(f"call-{n}-{i}", c[0], arguments=json.dumps(c[1]))
            for i, c in enumerate(step)
        ]

    def texts(self, turn: int = -1) -> str:
        """All that the model read in a turn."""
        return "\n".join(str(c.text or c.result or "") for m in self.read[turn] for c in m.contents)


def governed(function: Any, mode: str = "never_require") -> Any:
    return agent_framework.tool(approval_mode=mode)(function)


async def go(agent: Any, what: Any, stream: bool, **options: Any) -> Any:
    """Run an agent, and return its whole response."""
    if not stream:
        return await agent.run(what, **options)
    pieces = agent.run(what, stream=True, **options)
    async for _ in pieces:
        pass
    return await pieces.get_final_response()


def results(response: Any) -> list[str]:
    return [str(c.result) for m in response.messages for c in m.contents if c.type == "function_result"]
