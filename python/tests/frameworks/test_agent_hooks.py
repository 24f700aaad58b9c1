from __future__ import annotations

import asyncio
from typing import Any

import pytest
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")
pytest.importorskip("agent_hooks", reason="agent-hooks is not installed")

from agent_framework import Agent, create_agent_hooks_middleware
from test_agent_framework import AgentFramework, ScriptedClient, governed

from govnode.adapters.agent_hooks import GovnodeInterceptor


class AgentHooks(Driver):
    """An agent of Microsoft Agent Framework, which is a host of the contract."""

    modes = ("async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, before: Any = (), after: Any = (), **options: Any) -> Any:
        interceptors = [*before, GovnodeInterceptor(session, **options), *after]
        # The waits of the laws are longer than what a host grants an interceptor.
        hooks = create_agent_hooks_middleware(interceptors, timeout=None)
        return Agent(client=ScriptedClient(script), tools=[governed(tool)], middleware=[hooks])

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return AgentFramework.seen(await agent.run("go"))
        stream = agent.run("go", stream=True)
        async for _ in stream:
            pass
        return AgentFramework.seen(await stream.get_final_response())


DRIVER = AgentHooks()


class TestAgentHooks(Laws):
    driver = DRIVER
