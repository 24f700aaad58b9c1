from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed")

from agent_framework import Agent, FunctionMiddleware
from maf import ScriptedClient, go, governed, results

from govnode.adapters.agent_framework import GovnodeMiddleware


class AgentFramework(Driver):
    modes = ("async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, before: Any = (), **options: Any) -> Any:
        middleware = [*before, GovnodeMiddleware(session, **options)]
        return Agent(client=ScriptedClient(script), tools=[governed(tool)], middleware=middleware)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        return self.seen(await go(agent, "go", mode == "stream"))

    @staticmethod
    def seen(response: Any) -> Seen:
        return Seen(results(response), response.text)


DRIVER = AgentFramework()


class TestAgentFramework(Laws):
    driver = DRIVER

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def shell(command: str) -> str:
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            session.open()
            stream = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell).run("go", stream=True)

            async def read() -> None:
                async for _ in stream:
                    pass

            reader = asyncio.create_task(read())
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_synchronous_tools(self, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        assert "rm -rf" in DRIVER.run(session, SCRIPT, tool.function, mode).model_saw[1]
        assert tool.executed == ["ls"]

    def test_what_others_changed_is_judged(self, session: govnode.Session) -> None:
        class Rewriter(FunctionMiddleware):
            async def process(self, context: Any, call_next: Any) -> None:
                context.arguments = {"command": "rm -rf /"}
                await call_next()

        tool = Tool()
        agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], tool.function, before=[Rewriter()])
        seen = DRIVER.seen(asyncio.run(agent.run("go")))
        assert "Denied" in seen.model_saw[0]
        assert tool.executed == []

    def test_one_middleware_on_agent_and_run_counts_once(self, session: govnode.Session) -> None:
        gate = GovnodeMiddleware(session)
        tool = Tool("async")
        agent = Agent(
            client=ScriptedClient([[("shell", {"command": "ls"})], "done"]),
            tools=[governed(tool.function)],
            middleware=[gate],
        )
        asyncio.run(agent.run("go", middleware=[gate]))
        info = session.read()
        assert tool.executed == ["ls"]
        assert (info.attempts, info.executions) == (1, 1)

    def test_session_of_each_agent_session(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        agent = DRIVER.agent(of, [[("shell", {"command": "ls"})], "done"], Tool().function)
        asyncio.run(agent.run("go", session=agent.create_session(session_id="a")))
        assert client.get_session(f"{session.id}-a").executions == 1

    def test_agent_as_a_tool(self, session: govnode.Session) -> None:
        tool = Tool("async")
        middleware = GovnodeMiddleware(session)
        inner = Agent(
            client=ScriptedClient([[("shell", {"command": "rm -rf /"})], "inside"]),
            name="inner",
            tools=[governed(tool.function)],
            middleware=[middleware],
        )
        outer = Agent(
            client=ScriptedClient([[("ask", {"task": "hello"})], "done"]),
            tools=[inner.as_tool(name="ask", description="asks", arg_name="task")],
            middleware=[middleware],
        )
        seen = DRIVER.seen(asyncio.run(outer.run("go")))
        assert "inside" in seen.model_saw[0]
        assert tool.executed == []
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 1, ())
