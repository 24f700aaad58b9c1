from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed

pytest.importorskip("smolagents", reason="smolagents is not installed")

import smolagents
from smolagents import ActionStep, CodeAgent, LogLevel, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
)

from govnode.adapters.smolagents import ApprovalQueue, govern_agent


class ScriptedModel(Model):
    def __init__(self, script: Script, code: bool) -> None:
        super().__init__(model_id="scripted")
        self.turns, self.code = iter(enumerate(script)), code

    def generate(self, messages: Any, stop_sequences: Any = None, **kwargs: Any) -> Any:
        n, step = next(self.turns)
        calls = [("final_answer", {"answer": step})] if isinstance(step, str) else step
        if self.code:

            def line(name: str, args: Any) -> str:
                written = f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})"
                return written if name == "final_answer" else f"print({written})"

            lines = [calls] if isinstance(calls, tuple) else [line(t, a) for t, a in calls]
            code = "\n".join(lines) if isinstance(lines[0], str) else lines[0][0]
            return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next\n<code>\n{code}\n</code>")
        tool_calls = [
            ChatMessageToolCall(
                id=f"call-{n}-{i}", type="function", function=ChatMessageToolCallFunction(name=t, arguments=a)
            )
            for i, (t, a) in enumerate(calls)
        ]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=tool_calls)


def as_tool(function: Any) -> Any:
    class Shell(smolagents.Tool):
        name = "shell"
        description = "a shell"
        inputs = {"command": {"type": "string", "description": "the command"}}  # noqa: RUF012
        output_type = "string"

        def forward(self, command: str) -> str:
            result = function(command)
            return str(asyncio.run(result)) if inspect.iscoroutine(result) else str(result)

    return Shell()


class Smolagents(Driver):
    """smolagents runs synchronously; an application on a loop runs it in a thread, here to read its stream."""

    modes = ("sync", "stream")
    code = False

    def agent(self, session: Any, script: Script, tool: Any, **options: Any) -> Any:
        kind = CodeAgent if self.code else ToolCallingAgent
        agent = kind(tools=[as_tool(tool)], model=ScriptedModel(script, self.code), verbosity_level=LogLevel.OFF)
        return govern_agent(agent, session, **options)

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        return self.seen(agent, agent.run("go"))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        steps = await asyncio.to_thread(lambda: list(agent.run("go", stream=True)))
        return self.seen(agent, getattr(steps[-1], "output", None))

    @staticmethod
    def seen(agent: Any, final: Any) -> Seen:
        steps = [s for s in agent.memory.steps if isinstance(s, ActionStep)]
        return Seen([str(s.error or s.observations).strip() for s in steps][:-1], str(final))


class CodeSmolagents(Smolagents):
    code = True


DRIVER = Smolagents()
CODE = CodeSmolagents()


class SmolagentsLaws(Laws):
    def test_slot_comes_back_after_cancellation(self, session: govnode.Session, loop_mode: str) -> None:
        """Nothing cancels a run: KeyboardInterrupt goes through the tool."""

        def shell(command: str) -> str:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.driver.run(session, [[("shell", {"command": "ls"})], "done"], shell, "sync")
        eventually(lambda: session.read().open_calls == ())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        agent = self.driver.agent(session, SCRIPT, Tool().function)
        stream = agent.run("go", stream=True)
        for step in stream:
            if isinstance(step, ActionStep):
                break
        stream.close()
        assert session.read().open_calls == ()

    def test_approval_queue(self, client: govnode.Client) -> None:
        client.put_policy(
            "name: asks\nallowed_tools: [shell]\nrequire_human_approval: true\napproval: {timeout: 60s}\n"
        )
        session = client.session(agent="tester", policy="asks")
        queue = ApprovalQueue(client, approver="carla", session_id=session.id)
        tool = Tool()
        asked: list[Any] = []

        class Model(ScriptedModel):
            def generate(self, messages: Any, stop_sequences: Any = None, **kwargs: Any) -> Any:
                for waiting in queue.get_pending_approvals():
                    asked.append(waiting)
                    if "ls" in waiting.arguments:
                        queue.approve(waiting.id)
                    else:
                        queue.deny(waiting.call_id, reason="not that")
                return super().generate(messages, stop_sequences, **kwargs)

        assert isinstance(self.driver, Smolagents)
        ls, other = ("shell", {"command": "ls"}), ("shell", {"command": "other"})
        agent = self.driver.agent(session, [], tool.function)
        agent.model = Model([[ls], [ls], [other], [other], "done"], self.driver.code)
        seen = Smolagents.seen(agent, agent.run("go"))
        assert tool.executed == ["ls"]  # the call that was approved is the one that is made again
        assert len(asked) == 2
        assert asked[0].id in seen.model_saw[0]
        assert "ran ls" in seen.model_saw[1]
        assert "Approval denied" in seen.model_saw[3]

    def test_tools_that_are_added_later_are_governed(self, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        tool = Tool()
        agent = self.driver.agent(session, SCRIPT, lambda command: "")
        agent.tools["shell"] = as_tool(tool.function)
        agent.run("go")
        assert tool.executed == ["ls"]
        assert session.read().attempts == 2

    def test_an_agent_is_governed_once(self, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        agent = self.driver.agent(session, SCRIPT, Tool().function)
        with pytest.raises(ValueError, match="already"):
            govern_agent(agent, session)

    def test_killed_session_runs_no_more(self, client: govnode.Client, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        agent = self.driver.agent(session, [[("shell", {"command": "ls"})], "never", "never"], Tool().function)
        for _ in range(2):
            with pytest.raises(Killed):
                agent.run("go")

    def test_managed_agents_are_governed(self, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        tool = Tool()
        code = self.driver.code
        kind = CodeAgent if code else ToolCallingAgent
        inner = kind(
            tools=[as_tool(tool.function)],
            model=ScriptedModel([[("shell", {"command": "rm -rf /"})], "inside"], code),
            name="helper",
            description="helps",
            verbosity_level=LogLevel.OFF,
        )
        outer = kind(
            tools=[],
            model=ScriptedModel([[("helper", {"task": "help"})], "done"], code),
            managed_agents=[inner],
            verbosity_level=LogLevel.OFF,
        )
        govern_agent(outer, session)
        seen = Smolagents.seen(outer, outer.run("go"))
        assert "inside" in seen.model_saw[0]
        assert tool.executed == []
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 1, ())

    def test_kill_in_a_managed_agent_ends_the_run(self, client: govnode.Client, session: govnode.Session) -> None:
        assert isinstance(self.driver, Smolagents)
        code = self.driver.code

        def shell(command: str) -> str:
            client.signal("KILL", session_id=session.id, reason="enough")
            return ""

        kind = CodeAgent if code else ToolCallingAgent
        inner = kind(
            tools=[as_tool(shell)],
            model=ScriptedModel([[("shell", {"command": "ls"})]] * 2 + ["inside"], code),
            name="helper",
            description="helps",
            verbosity_level=LogLevel.OFF,
        )
        outer = kind(
            tools=[],
            model=ScriptedModel([[("helper", {"task": "help"})], "done"], code),
            managed_agents=[inner],
            verbosity_level=LogLevel.OFF,
        )
        with pytest.raises(Killed):
            govern_agent(outer, session).run("go")


class TestToolCallingAgent(SmolagentsLaws):
    driver = DRIVER

    def test_parallel_calls_of_a_turn(self, session: govnode.Session) -> None:
        tool = Tool()
        script: Script = [[("shell", {"command": str(i)}) for i in range(4)], "done"]
        self.driver.run(session, script, tool.function, "sync")
        assert sorted(tool.executed) == ["0", "1", "2", "3"]
        assert session.read().executions == 4


class TestCodeAgent(SmolagentsLaws):
    driver = CODE

    @pytest.mark.parametrize(
        "code",
        [
            "try:\n    shell('rm -rf /')\nexcept Exception:\n    print('caught')",
            "print(shell({'command': 'rm -rf /'}))",
            "print(shell.forward('rm -rf /'))",
            "print(shell.call(('rm -rf /',), {}))",
            "print(shell.inner('rm -rf /'))",
        ],
    )
    def test_no_way_around(self, session: govnode.Session, code: str) -> None:
        tool = Tool()
        agent = CODE.agent(session, [(code,), "done"], tool.function)
        agent.run("go")
        assert tool.executed == []

    def test_arguments_without_names_are_judged_by_name(self, client: govnode.Client) -> None:
        client.put_policy("name: by-name\nallowed_tools: [shell]\n")
        session = client.session(agent="tester", policy="by-name")
        tool = Tool()
        CODE.agent(session, [("shell('ls')",), "done"], tool.function).run("go")
        assert tool.executed == ["ls"]

    def test_code_that_runs_elsewhere_is_refused(self, session: govnode.Session) -> None:
        agent = CodeAgent(tools=[], model=ScriptedModel([], True), verbosity_level=LogLevel.OFF)
        agent.python_executor = object()  # type: ignore[assignment,unused-ignore]
        with pytest.raises(ValueError, match="executor_type"):
            govern_agent(agent, session)
