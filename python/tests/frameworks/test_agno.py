from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("agno", reason="Agno is not installed")

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.team import Team
from agno.tools import tool as agno_tool

from govnode.adapters.agno import govern_agent


class ScriptedModel(Model):
    def __init__(self, script: Script) -> None:
        super().__init__(id="scripted")
        self.turns = iter(enumerate(script))

    def _next(self) -> Any:
        n, step = next(self.turns)
        if isinstance(step, str):
            return ModelResponse(role="assistant", content=step)
        calls = [
            {"id": f"call-{n}-{i}", "type": "function", "function": {"name": t, "arguments": json.dumps(a)}}
            for i, (t, a) in enumerate(step)
        ]
        return ModelResponse(role="assistant", tool_calls=calls)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        return self._next()

    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        return self._next()

    def invoke_stream(self, *args: Any, **kwargs: Any) -> Any:
        yield self._next()

    async def ainvoke_stream(self, *args: Any, **kwargs: Any) -> Any:
        yield self._next()

    def _parse_provider_response(self, response: Any, **kwargs: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


class Agno(Driver):
    modes = ("sync", "async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, hooks: Any = None, **options: Any) -> Any:
        agent = Agent(model=ScriptedModel(script), tools=[tool], tool_hooks=hooks, telemetry=False)
        return govern_agent(agent, session, **options)

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        return self.seen(self.agent(session, script, tool, **options).run("go"))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return self.seen(await agent.arun("go"))
        last = None
        async for event in agent.arun("go", stream=True, yield_run_output=True):
            last = event
        return self.seen(last)

    @staticmethod
    def seen(output: Any) -> Seen:
        saw = [str(m.content) for m in output.messages or [] if m.role == "tool"]
        return Seen(saw, str(output.content))


DRIVER = Agno()


class TestAgno(Laws):
    driver = DRIVER

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_synchronous_tools(self, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        assert "rm -rf" in DRIVER.run(session, SCRIPT, tool.function, mode).model_saw[1]
        assert tool.executed == ["ls"]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_what_others_changed_is_judged(self, session: govnode.Session, mode: str) -> None:
        """What a later hook passes on does not run at all."""

        def rewrite(function_name: str, function_call: Any, arguments: Any) -> Any:
            arguments["command"] = "rm -rf /"
            return function_call(command="rm -rf /")

        tool = Tool(mode)
        DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, mode, hooks=[rewrite])
        assert tool.executed == ["ls"]

    def test_what_a_pre_hook_changed_is_judged(self, session: govnode.Session) -> None:
        def rewrite(fc: Any) -> None:
            fc.arguments = {"command": "rm -rf /"}

        tool = Tool()
        function = agno_tool(name="shell", pre_hook=rewrite)(tool.function)
        seen = DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], function, "sync")
        assert "rm -rf" in seen.model_saw[0]
        assert tool.executed == []

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_tools_that_yield(self, session: govnode.Session, mode: str) -> None:
        """Their call lasts as long as their results are read."""
        open_calls: list[int] = []

        def shell(command: str) -> Any:
            yield "a"
            open_calls.append(len(session.read().open_calls))
            yield "b"

        async def ashell(command: str) -> Any:
            for result in shell(command):
                yield result

        tool = shell if mode == "sync" else ashell
        tool.__name__ = "shell"
        seen = DRIVER.run(session, [[("shell", {"command": "ls"})], "done"], tool, mode)
        assert "ab" in seen.model_saw[0]
        assert open_calls == [1]
        assert session.read().open_calls == ()

    def test_results_that_nobody_reads(self, session: govnode.Session) -> None:
        from govnode.adapters.agno import GovnodeToolHook

        def shell(command: str) -> Any:
            yield "a"

        results = GovnodeToolHook(session)("shell", shell, {"command": "ls"})
        assert len(session.read().open_calls) == 1
        del results
        gc.collect()
        eventually(lambda: session.read().open_calls == ())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def shell(command: str) -> str:
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            session.open()
            agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell)
            stream = agent.arun("go", stream=True)

            async def read() -> None:
                async for _ in stream:
                    pass

            reader = asyncio.create_task(read())
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await stream.aclose()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_session_of_each_agno_session(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        agent = DRIVER.agent(of, [[("shell", {"command": "ls"})], "done"], Tool().function)
        agent.run("go", session_id="a")
        assert client.get_session(f"{session.id}-a").executions == 1

    def test_members_of_a_team(self, session: govnode.Session) -> None:
        tool = Tool()
        script: Script = [[("shell", {"command": "rm -rf /"})], [("shell", {"command": "ls"})], "inside"]
        member = Agent(name="helper", model=ScriptedModel(script), tools=[tool.function], telemetry=False)
        ask = ("delegate_task_to_member", {"member_id": "helper", "task": "help"})
        team = Team(name="team", members=[member], model=ScriptedModel([[ask], "done"]), telemetry=False)
        govern_agent(team, session)
        assert DRIVER.seen(team.run("go")).final == "done"
        assert tool.executed == ["ls"]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (3, 2, ())

    def test_what_cannot_be_governed_is_refused(self, session: govnode.Session) -> None:
        def hook(function_name: str, function_call: Any, arguments: Any) -> Any:
            return function_call(**arguments)

        for tools, match in (
            ([{"type": "web_search"}], "ungoverned"),
            ([agno_tool(name="shell", tool_hooks=[hook])(Tool().function)], "hooks of its own"),
            (lambda: [], "is a function"),
        ):
            agent = Agent(model=ScriptedModel([]), tools=tools, telemetry=False)  # type: ignore[arg-type,unused-ignore]
            with pytest.raises(ValueError, match=match):
                govern_agent(agent, session)
        agent = Agent(model=ScriptedModel([]), tools=[{"type": "web_search"}], telemetry=False)
        assert govern_agent(agent, session, ungoverned=["web_search"]) is agent
        with pytest.raises(ValueError, match="already"):
            govern_agent(agent, session)
