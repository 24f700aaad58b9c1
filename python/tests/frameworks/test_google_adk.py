from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from laws import Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("google.adk", reason="Google ADK is not installed")

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import AgentTool, FunctionTool
from google.genai import types

from govnode.adapters.google_adk import GovnodePlugin


class ScriptedLlm(BaseLlm):
    script: list[Any]
    turn: int = 0

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        n, step = self.turn, self.script[self.turn]
        self.turn += 1
        if isinstance(step, str):
            parts = [types.Part(text=step)]
        else:
            calls = [types.FunctionCall(id=f"call-{n}-{i}", name=t, args=a) for i, (t, a) in enumerate(step)]
            parts = [types.Part(function_call=c) for c in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def scripted(script: Script) -> ScriptedLlm:
    return ScriptedLlm(model="scripted", script=script)


def said(text: str) -> Any:
    return types.Content(role="user", parts=[types.Part(text=text)])


WHO = {"user_id": "user-1", "session_id": "session-1"}


class ADK(Driver):
    modes = ("sync", "async", "stream")
    threads = False  # a synchronous tool runs on the event loop

    def runner(self, plugins: list[Any], agent: Any) -> Any:
        return InMemoryRunner(app=App(name="laws", root_agent=agent, plugins=plugins))

    def agent(self, script: Script, *tools: Any, **more: Any) -> Any:
        return LlmAgent(name=more.pop("name", "worker"), model=scripted(script), tools=list(tools), **more)

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        runner = self.runner([GovnodePlugin(session, **options)], self.agent(script, tool))
        asyncio.run(runner.session_service.create_session(app_name="laws", **WHO))
        return self.seen(list(runner.run(**WHO, new_message=said("go"))))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        runner = self.runner([GovnodePlugin(session, **options)], self.agent(script, tool))
        streaming = StreamingMode.SSE if mode == "stream" else StreamingMode.NONE
        return await self.run_on(runner, run_config=RunConfig(streaming_mode=streaming))

    async def run_on(self, runner: Any, **more: Any) -> Seen:
        await runner.session_service.create_session(app_name="laws", **WHO)
        return self.seen([e async for e in runner.run_async(**WHO, new_message=said("go"), **more)])

    @staticmethod
    def seen(events: list[Any]) -> Seen:
        parts = [p for e in events if e.content for p in e.content.parts or ()]
        texts = [p.text for p in parts if p.text]
        return Seen([str(p.function_response.response) for p in parts if p.function_response], (texts or [""])[-1])


DRIVER = ADK()


class TestGoogleADK(Laws):
    driver = DRIVER
