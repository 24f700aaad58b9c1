from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool, causes

import govnode
from govnode.adapters import Killed

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")
pytest.importorskip("crewai", reason="CrewAI is not installed")

from crewai import Agent, BaseLLM, Crew, Task
from crewai.hooks import HookAborted, InterceptionPoint, register_hook, unregister_hook
from crewai.tools import tool as crewai_tool

from govnode.adapters.crewai import GovnodeHooks, govern

# CrewAI deprecates fields that it looks at itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class ScriptedLLM(BaseLLM):
    script: list[Any]
    native: bool = True
    turn: int = 0
    seen: list[Any] = []  # noqa: RUF012 - a field of a model

    def supports_function_calling(self) -> bool:
        return self.native

    def call(self, messages: Any, tools: Any = None, **kwargs: Any) -> Any:
        self.seen = list(messages)
        step, n = self.script[self.turn], self.turn
        self.turn += 1
        if isinstance(step, str):
            return step if self.native else f"Thought: I know\nFinal Answer: {step}"
        if self.native:
            return [
                {"id": f"call-{n}-{i}", "type": "function", "function": {"name": t, "arguments": json.dumps(a)}}
                for i, (t, a) in enumerate(step)
            ]
        name, args = step[0]
        return f"Thought: next\nAction: {name}\nAction Input: {json.dumps(args)}"

    async def acall(self, messages: Any, tools: Any = None, **kwargs: Any) -> Any:
        return self.call(messages, tools)

    def results(self) -> list[str]:
        if self.native:
            return [str(m["content"]) for m in self.seen if m["role"] == "tool"]
        texts = [str(m["content"]) for m in self.seen if "Observation:" in str(m["content"])]
        parts = [part for text in texts for part in text.split("Observation:")[1:]]
        # The prompt has the word too, where it tells the format.
        return [part for part in parts if not part.startswith(" the result of the action")][-self.turn + 1 :]


class CrewAI(Driver):
    modes = ("sync", "async")
    native = True

    def crew(self, script: Script, tool: Any) -> Any:
        if not self.native:  # the text protocol knows one call a turn
            script = [
                s if isinstance(s, str) else [call] for s in script for call in ([s] if isinstance(s, str) else s)
            ]
        llm = ScriptedLLM(model="scripted", script=script, native=self.native)
        agent = Agent(
            role="worker", goal="work", backstory="none", llm=llm, tools=[crewai_tool("shell")(tool)], verbose=False
        )
        task = Task(description="go", expected_output="anything", agent=agent)
        return Crew(agents=[agent], tasks=[task], verbose=False), llm

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        crew, llm = self.crew(script, tool)
        with govern(session, **options):
            result = crew.kickoff()
        return Seen(llm.results(), result.raw)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        crew, llm = self.crew(script, tool)
        with govern(session, **options):
            result = await crew.akickoff()
        return Seen(llm.results(), result.raw)


class TextCrewAI(CrewAI):
    native = False


class CrewAILaws(Laws):
    def test_slot_comes_back_after_cancellation(self, session: govnode.Session, loop_mode: str) -> None:
        """Tools run in threads, asynchronous ones too, which nothing cancels: KeyboardInterrupt goes through them."""

        def shell(command: str) -> str:
            """Is interrupted."""
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.driver.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        eventually(lambda: session.read().open_calls == ())

    def test_hook_that_fails_denies(self, session: govnode.Session, monkeypatch: pytest.MonkeyPatch) -> None:
        """CrewAI would swallow the exception and let the tool run."""

        def broken(*args: Any, **kwargs: Any) -> Any:
            raise ValueError("it is broken")

        monkeypatch.setattr("govnode.adapters._gate.Gate.enter", broken)
        tool = Tool()
        seen = self.driver.run(session, SCRIPT, tool.function, "sync")
        assert tool.executed == []
        assert seen.final == "done"

    def test_failure_of_a_tool_is_one(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            """Fails."""
            raise ValueError("no such file")

        self.driver.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_what_others_changed_is_judged(self, session: govnode.Session) -> None:
        """Also what is registered after it was entered: the hooks of a block stand behind all global ones."""

        def rewrite(context: Any) -> None:
            context.tool_input["command"] = "rm -rf /"

        tool = Tool()
        register_hook(InterceptionPoint.PRE_TOOL_CALL, rewrite)
        try:
            seen = self.driver.run(session, [[("shell", {"command": "ls"})], "done"], tool.function, "sync")
        finally:
            unregister_hook(InterceptionPoint.PRE_TOOL_CALL, rewrite)
        assert "rm -rf" in seen.model_saw[0]
        assert tool.executed == []

    def test_what_another_hook_blocks_is_no_failure(self, session: govnode.Session) -> None:
        def block(context: Any) -> None:
            raise HookAborted("no", "test")

        tool = Tool()
        hooks = GovnodeHooks(session)
        hooks.register()
        register_hook(InterceptionPoint.PRE_TOOL_CALL, block)
        assert isinstance(self.driver, CrewAI)
        try:
            self.driver.crew([[("shell", {"command": "ls"})], "done"], tool.function)[0].kickoff()
        finally:
            unregister_hook(InterceptionPoint.PRE_TOOL_CALL, block)
            hooks.unregister()
        info = session.read()
        assert tool.executed == []
        assert (info.attempts, info.failures, info.open_calls) == (1, 0, ())

    def test_hooks_are_for_one_block_at_a_time(self, session: govnode.Session) -> None:
        with govern(session) as hooks, pytest.raises(RuntimeError, match="own"):
            hooks.__enter__()

    def test_kill_ends_it_with_the_abort_of_the_framework(
        self, client: govnode.Client, session: govnode.Session
    ) -> None:
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        script: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "ls"})], "done"]
        with pytest.raises(HookAborted, match="enough") as raised:
            self.driver.run(session, script, Tool().function, "sync")
        assert Killed in [type(e) for e in causes(raised.value)]


class TestToolCalls(CrewAILaws):
    driver = CrewAI()

    def test_crews_at_once_have_sessions_of_their_own(self, client: govnode.Client, session: govnode.Session) -> None:
        other = client.session(agent="tester", policy="plain")
        tool = Tool()

        async def scenario() -> None:
            script = [[("shell", {"command": "ls"})], "done"]
            await asyncio.gather(*(self.driver.ago(s, script, tool.function, "async") for s in (session, other)))

        asyncio.run(scenario())
        assert (session.read().executions, other.read().executions) == (1, 1)

    def test_session_of_each_crew(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()
        ids: list[str] = []

        def of(crew: str) -> govnode.Session:
            ids.append(f"{session.id}-{crew}")
            return client.session(ids[0], agent="tester", policy="plain")

        self.driver.run(of, [[("shell", {"command": "ls"})], "done"], Tool().function, "sync")
        assert client.get_session(ids[0]).executions == 1


class TestTextProtocol(CrewAILaws):
    driver = TextCrewAI()


DRIVER = TestToolCalls.driver
