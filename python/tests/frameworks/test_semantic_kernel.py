from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("semantic_kernel", reason="Semantic Kernel is not installed")

from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    StreamingChatMessageContent,
    StreamingTextContent,
    TextContent,
)
from semantic_kernel.functions import kernel_function

from govnode.adapters.semantic_kernel import govern


class ScriptedService(ChatCompletionClientBase):
    SUPPORTS_FUNCTION_CALLING = True
    script: list[Any]
    turn: int = 0

    def __init__(self, script: Script) -> None:
        super().__init__(ai_model_id="scripted", script=script)

    def _next(self) -> tuple[list[Any], str]:
        step, n = self.script[self.turn], self.turn
        self.turn += 1
        if isinstance(step, str):
            return [], step
        return [
            FunctionCallContent(
                id=f"call-{n}-{i}", index=i, name=t if "-" in t else f"tools-{t}", arguments=json.dumps(a)
            )
            for i, (t, a) in enumerate(step)
        ], ""

    async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
        calls, text = self._next()
        return [ChatMessageContent(role=AuthorRole.ASSISTANT, items=calls or [TextContent(text=text)])]

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: Any, settings: Any, function_invoke_attempt: int = 0
    ) -> Any:
        calls, text = self._next()
        for item in calls or [StreamingTextContent(text=part, choice_index=0) for part in text]:
            yield [
                StreamingChatMessageContent(
                    role=AuthorRole.ASSISTANT, choice_index=0, items=[item], ai_model_id="scripted"
                )
            ]


def kernel_of(tool: Any, session: Any, **options: Any) -> Any:
    kernel = Kernel()
    kernel.add_function("tools", kernel_function(name="shell")(tool))
    return govern(kernel, session, **options)


def results(messages: Any) -> list[str]:
    return [str(i.result) for m in messages for i in m.items if isinstance(i, FunctionResultContent)]


class Service(Driver):
    """A chat service that is given a kernel."""

    modes = ("async", "stream")
    threads = False

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        return await self.chat(kernel_of(tool, session, **options), script, mode)

    async def chat(self, kernel: Any, script: Script, mode: str = "async") -> Seen:
        history = ChatHistory()
        history.add_user_message("go")
        settings = PromptExecutionSettings(
            function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=20)
        )
        service = ScriptedService(script)
        if mode == "async":
            final = str(await service.get_chat_message_content(history, settings, kernel=kernel))
        else:
            final = ""
            async for message in service.get_streaming_chat_message_content(history, settings, kernel=kernel):
                final += str(message)
        return Seen(results(history.messages), final)


class Agent(Driver):
    """A ChatCompletionAgent."""

    modes = ("async", "stream")
    threads = False

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = ChatCompletionAgent(
            name="worker",
            kernel=kernel_of(tool, session, **options),
            service=ScriptedService(script),
            function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=20),
        )
        thread = ChatHistoryAgentThread()
        if mode == "async":
            final = str((await agent.get_response("go", thread=thread)).message)
        else:
            final = ""
            async for item in agent.invoke_stream("go", thread=thread):
                final += str(item.message)
        return Seen(results([m async for m in thread.get_messages()]), final)


SERVICE = Service()
DRIVER = Agent()


class TestSemanticKernel(Laws):
    driver = SERVICE


class TestChatCompletionAgent(Laws):
    driver = DRIVER
