from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError

pytest.importorskip("autogen_agentchat", reason="AutoGen is not installed")

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import (
    AgentId,
    CancellationToken,
    DefaultTopicId,
    FunctionCall,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TypeSubscription,
    message_handler,
)
from autogen_core.models import CreateResult, RequestUsage, UserMessage
from autogen_core.tool_agent import ToolAgent, tool_agent_caller_loop
from autogen_core.tools import FunctionTool, StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient

from govnode.adapters.autogen import GovnodeHandler, GovnodeWorkbench, govern_agent

INFO: Any = {
    "function_calling": True,
    "vision": False,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


def scripted(script: Script) -> Any:
    def result(n: int, step: Any) -> Any:
        if isinstance(step, str):
            return step
        calls = [FunctionCall(id=f"call-{n}-{i}", name=t, arguments=json.dumps(a)) for i, (t, a) in enumerate(step)]
        return CreateResult(finish_reason="function_calls", content=calls, usage=RequestUsage(0, 0), cached=False)

    return ReplayChatCompletionClient([result(n, s) for n, s in enumerate(script)], model_info=INFO)


def as_tool(function: Any) -> Any:
    return FunctionTool(function, name="shell", description="a shell")


class AutoGen(Driver):
    """An assistant with tools."""

    modes = ("async", "stream")

    def agent(self, session: Any, script: Script, tool: Any, **options: Any) -> Any:
        agent = AssistantAgent("worker", scripted(script), tools=[as_tool(tool)], max_tool_iterations=20)
        return govern_agent(agent, session, **options)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return self.seen(await agent.run(task="go"))
        result = None
        async for event in agent.run_stream(task="go"):
            if isinstance(event, TaskResult):
                result = event
        return self.seen(result)

    @staticmethod
    def seen(result: Any) -> Seen:
        events = [m for m in result.messages if isinstance(m, ToolCallExecutionEvent)]
        return Seen([r.content for e in events for r in e.content], result.messages[-1].content)


class Runtime(Driver):
    """An agent of the core that sends its calls to a ToolAgent."""

    modes = ("async",)

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        handler = GovnodeHandler(session, **options)
        runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))
        tools: Any = [as_tool(tool)]
        client = scripted(script)

        class Caller(RoutedAgent):
            @message_handler
            async def go(self, message: UserMessage, ctx: Any) -> Any:
                return await tool_agent_caller_loop(
                    self,
                    AgentId("tools", "default"),
                    model_client=client,
                    input_messages=[message],
                    tool_schema=tools,
                    cancellation_token=ctx.cancellation_token,
                )

        await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", tools))
        await Caller.register(runtime, "caller", lambda: Caller("caller"))
        runtime.start()
        token = CancellationToken()
        try:
            sent = UserMessage(content="go", source="user")
            messages = await runtime.send_message(sent, AgentId("caller", "default"), cancellation_token=token)
        except BaseException:
            token.cancel()
            raise
        finally:
            await runtime.stop()
        saw = [r.content for m in messages if isinstance(m.content, list) for r in m.content if hasattr(r, "is_error")]
        return Seen(saw, str(messages[-1].content))


DRIVER = AutoGen()


class TestAutoGen(Laws):
    driver = DRIVER

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_synchronous_tools(self, session: govnode.Session, mode: str) -> None:
        tool = Tool("sync")
        assert "rm -rf" in DRIVER.run(session, SCRIPT, tool.function, mode).model_saw[1]
        assert tool.executed == ["ls"]

    def test_denial_is_marked_as_an_error(self, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, SCRIPT, Tool().function)
        result = asyncio.run(agent.run(task="go"))
        events = [m for m in result.messages if isinstance(m, ToolCallExecutionEvent)]
        assert [r.is_error for e in events for r in e.content] == [False, True]

    def test_wrong_arguments_are_a_failure(self, session: govnode.Session) -> None:
        DRIVER.run(session, [[("shell", {"wrong": "ls"})], "done"], Tool().function, "async")
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_a_workbench_of_its_own(self, session: govnode.Session) -> None:
        """A subclass of StaticStreamWorkbench is called in another way than all others: this one is none."""
        tool = Tool("async")
        for inner in (StaticWorkbench([as_tool(tool.function)]), [as_tool(tool.function)]):
            bench = GovnodeWorkbench(inner, session)
            agent = AssistantAgent("worker", scripted(SCRIPT), workbench=bench, max_tool_iterations=10)
            assert "rm -rf" in DRIVER.seen(asyncio.run(agent.run(task="go"))).model_saw[1]
        assert tool.executed == ["ls", "ls"]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_cancellation_token(self, session: govnode.Session, mode: str) -> None:
        """Without the workbench a run that is cancelled by its token during a tool never ends."""
        import threading

        started, go_on = threading.Event(), threading.Event()

        def shell(command: str) -> str:
            started.set()
            assert go_on.wait(60)
            return ""

        async def ashell(command: str) -> str:
            started.set()
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell if mode == "sync" else ashell)
            token = CancellationToken()
            run = asyncio.create_task(agent.run(task="go", cancellation_token=token))
            assert await asyncio.to_thread(started.wait, 30)
            token.cancel()
            await asyncio.wait_for(asyncio.gather(run, return_exceptions=True), 30)
            if mode == "sync":
                assert len(session.read().open_calls) == 1
            go_on.set()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def shell(command: str) -> str:
            await asyncio.Event().wait()
            return ""

        async def scenario() -> None:
            session.open()
            agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell)
            stream = agent.run_stream(task="go")

            async def read() -> None:
                async for _ in stream:
                    pass

            reader = asyncio.create_task(read())
            await asyncio.to_thread(eventually, lambda: len(session.read().open_calls) == 1)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await stream.aclose()
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_agents_of_a_team(self, session: govnode.Session) -> None:
        tool = Tool("async")
        team = RoundRobinGroupChat(
            [DRIVER.agent(session, SCRIPT, tool.function)], termination_condition=TextMentionTermination("done")
        )
        result = asyncio.run(team.run(task="go"))
        assert tool.executed == ["ls"]
        assert "rm -rf" in DRIVER.seen(result).model_saw[1]

    @pytest.mark.parametrize("allowed", [True, False])
    def test_handoff_is_a_call(self, client: govnode.Client, allowed: bool) -> None:
        """AutoGen makes a handoff past all workbenches, and whatever its tool answers."""
        client.put_policy(f"name: handoff-{allowed}\nallowed_tools: [shell]\nmax_handoffs: {1 if allowed else 0}\n")
        session = client.session(agent="tester", policy=f"handoff-{allowed}")
        agent = AssistantAgent("worker", scripted([[("transfer_to_other", {})]]), handoffs=["other"])
        govern_agent(agent, session)
        if not allowed:
            with pytest.raises(PolicyViolationError, match="Max handoffs"):
                asyncio.run(agent.run(task="go"))
            return
        result = asyncio.run(agent.run(task="go"))
        assert type(result.messages[-1]).__name__ == "HandoffMessage"
        assert session.read().executions == 1

    def test_an_agent_is_governed_once(self, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, SCRIPT, Tool().function)
        with pytest.raises(ValueError, match="already"):
            govern_agent(agent, session)

    def test_killed_session_runs_no_more(self, client: govnode.Client, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done", "never"], Tool("async").function)
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        for _ in range(2):
            with pytest.raises(Killed):
                asyncio.run(agent.run(task="go"))


class TestRuntime(Laws):
    driver = Runtime()

    def test_failure_of_a_tool_gives_its_slot_back(self, session: govnode.Session) -> None:
        """The runtime tells handlers nothing of an answer that is an exception."""

        def shell(command: str) -> str:
            raise ValueError("no such file")

        seen = self.driver.run(session, [[("shell", {"command": "ls"})], "done"], shell, "async")
        assert seen.final == "done"
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    def test_handler_that_does_not_know_its_runtime_denies(self, session: govnode.Session) -> None:
        tool = Tool("async")

        async def scenario() -> None:
            runtime = SingleThreadedAgentRuntime(intervention_handlers=[GovnodeHandler(session)])
            await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", [as_tool(tool.function)]))
            runtime.start()
            call = FunctionCall(id="c", name="shell", arguments='{"command": "ls"}')
            with pytest.raises(RuntimeError, match="serve"):
                await runtime.send_message(call, AgentId("tools", "default"))
            await runtime.stop()

        asyncio.run(scenario())
        assert tool.executed == []

    def test_published_calls_are_not_delivered(self, session: govnode.Session) -> None:
        tool = Tool("async")

        async def scenario() -> None:
            handler = GovnodeHandler(session)
            runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))
            await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", [as_tool(tool.function)]))
            await runtime.add_subscription(TypeSubscription("default", "tools"))
            runtime.start()
            call = FunctionCall(id="c", name="shell", arguments='{"command": "ls"}')
            await runtime.publish_message(call, DefaultTopicId())
            await asyncio.wait_for(runtime.stop_when_idle(), 30)

        asyncio.run(scenario())
        assert tool.executed == []

    def test_malformed_arguments_are_denied(self, session: govnode.Session) -> None:
        async def scenario() -> Any:
            handler = GovnodeHandler(session)
            runtime = handler.serve(SingleThreadedAgentRuntime(intervention_handlers=[handler]))
            await ToolAgent.register(runtime, "tools", lambda: ToolAgent("tools", [as_tool(Tool().function)]))
            runtime.start()
            call = FunctionCall(id="c", name="shell", arguments="[1")
            result = await runtime.send_message(call, AgentId("tools", "default"))
            await runtime.stop()
            return result

        result = asyncio.run(scenario())
        assert result.is_error
        assert "JSON" in result.content
