from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from laws import Driver, Laws, Script, Seen, Tool, causes

import govnode
from govnode.adapters import PolicyViolationError

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import Agent, RunConfig, Runner, WebSearchTool, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from govnode.adapters.openai_agents import govern_agent

set_tracing_disabled(True)


def scripted(script: Script, name: str = "call") -> ScriptedModel:
    def step(n: int, s: Any) -> list[Any]:
        if isinstance(s, str):
            return [assistant_message(s)]
        return [function_call(t, json.dumps(a), call_id=f"{name}-{n}-{i}") for i, (t, a) in enumerate(s)]

    return ScriptedModel([step(n, s) for n, s in enumerate(script)])


class OpenAIAgents(Driver):
    modes = ("sync", "async", "stream")

    def agent(self, session: Any, script: Script, tool: Callable[..., Any], **options: Any) -> Any:
        agent = Agent(name="offline", model=scripted(script), tools=[function_tool(tool)])
        return govern_agent(agent, session, **options)

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        return self.seen(Runner.run_sync(self.agent(session, script, tool, **options), "go"))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return self.seen(await Runner.run(agent, "go"))
        result = Runner.run_streamed(agent, "go")
        async for _ in result.stream_events():
            pass
        return self.seen(result)

    @staticmethod
    def seen(result: Any) -> Seen:
        saw = [str(i.output) for i in result.new_items if i.type == "tool_call_output_item"]
        return Seen(saw, str(result.final_output))


DRIVER = OpenAIAgents()


def server_of(result: Any, executed: list[Any] | None = None, **options: Any) -> Any:
    """Return an MCP server with a tool, shell(command), that always gives the same."""
    from agents.mcp import MCPServer
    from mcp.types import Tool

    class Server(MCPServer):
        @property
        def name(self) -> str:
            return "files"

        async def connect(self) -> None:
            pass

        async def cleanup(self) -> None:
            pass

        async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
            schema = {"type": "object", "properties": {"command": {"type": "string"}}}
            return [Tool(name="shell", inputSchema=schema)]

        async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
            if executed is not None:
                executed.append(arguments)
            return result

        async def list_prompts(self) -> Any:
            return None

        async def get_prompt(self, name: str, arguments: Any = None) -> Any:
            return None

    return Server(**options)


class TestOpenAIAgents(Laws):
    driver = DRIVER

    def test_agent_as_a_tool(self, session: govnode.Session) -> None:
        tool = Tool()
        inner = Agent(name="inner", model=scripted(["inside"]), tools=[function_tool(tool.function)])
        outer = Agent(
            name="outer",
            model=scripted([[("ask", {"input": "rm -rf"})], [("ask", {"input": "hello"})], "done"]),
            tools=[inner.as_tool("ask", "asks")],
        )
        seen = DRIVER.seen(asyncio.run(Runner.run(govern_agent(outer, session), "go")))
        assert "Denied" in seen.model_saw[0]
        assert seen.model_saw[1] == "inside"

    def test_handoffs_are_calls_and_go_on_governed(self, client: govnode.Client) -> None:
        client.put_policy("name: no-shell\nallowed_tools: [search]\nmax_handoffs: 2\n")
        session = client.session(agent="tester", policy="no-shell")
        tool = Tool()
        second = Agent(
            name="second",
            model=scripted([[("shell", {"command": "ls"})], [("transfer_to_first", {})]], "second"),
            tools=[function_tool(tool.function)],
        )
        first = Agent(name="first", model=scripted([[("transfer_to_second", {})], "done"]), handoffs=[second])
        second.handoffs = [first]
        result = asyncio.run(Runner.run(govern_agent(first, session), "go"))
        assert result.final_output == "done"
        assert tool.executed == []
        info = session.read()
        assert (info.executions, info.attempts, info.open_calls) == (2, 3, ())

    def test_denied_handoff_ends_the_run(self, client: govnode.Client) -> None:
        client.put_policy(
            "name: stay\nrules: [{name: stay, action: deny, message: stay here, priority: 1, "
            "condition: {field: arguments.agent, operator: eq, value: transfer_to_second}}]\n"
        )
        session = client.session(agent="tester", policy="stay")
        second = Agent(name="second", model=scripted(["done"]))
        first = Agent(name="first", model=scripted([[("transfer_to_second", {})], "done"]), handoffs=[second])
        with pytest.raises(Exception, match="stay here") as raised:
            asyncio.run(Runner.run(govern_agent(first, session), "go"))
        assert PolicyViolationError in [type(e) for e in causes(raised.value)]

    def test_hosted_tools_are_refused(self, session: govnode.Session) -> None:
        agent = Agent(name="offline", tools=[WebSearchTool()])
        with pytest.raises(ValueError, match="web_search"):
            govern_agent(agent, session)
        assert govern_agent(agent, session, ungoverned=["web_search"]).tools == agent.tools

    def test_session_of_each_group(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()
        tool = Tool()

        def of(group: str) -> govnode.Session:
            return client.session(f"{session.id}-{group}", agent="tester", policy="plain")

        agent = DRIVER.agent(of, [[("shell", {"command": "ls"})], "done"], tool.function)
        asyncio.run(Runner.run(agent, "go", run_config=RunConfig(group_id="a")))
        assert client.get_session(f"{session.id}-a").executions == 1

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()

            async def shell(command: str) -> str:
                started.set()
                await asyncio.Event().wait()
                return ""

            result = Runner.run_streamed(DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell), "go")

            async def read() -> None:
                async for _ in result.stream_events():
                    pass

            reader = asyncio.create_task(read())
            await asyncio.wait_for(started.wait(), 30)
            result.cancel()
            await asyncio.wait_for(reader, 30)
            from conftest import eventually

            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_mcp_server(self, session: govnode.Session) -> None:
        mcp = pytest.importorskip("mcp.types")
        executed: list[Any] = []
        server = server_of(mcp.CallToolResult(content=[mcp.TextContent(type="text", text="ran")]), executed)
        script: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "rm -rf /"})], "done"]
        agent = Agent(name="offline", model=scripted(script), mcp_servers=[server])
        seen = DRIVER.seen(asyncio.run(Runner.run(govern_agent(agent, session), "go")))
        assert executed == [{"command": "ls"}]
        assert "Denied" in seen.model_saw[1]
