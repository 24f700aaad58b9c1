from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from laws import RULES, Driver, Laws, Script, Seen, Tool

import govnode

pytest.importorskip("langchain.agents", reason="LangChain is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from govnode.adapters.langchain import GovnodeMiddleware


class ScriptedModel(BaseChatModel):
    script: list[Any]
    turn: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        step, n = self.script[self.turn], self.turn
        self.turn += 1
        if isinstance(step, str):
            message = AIMessage(content=step)
        else:
            calls = [{"name": t, "args": a, "id": f"call-{n}-{i}"} for i, (t, a) in enumerate(step)]
            message = AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


INPUT = {"messages": [{"role": "user", "content": "go"}]}


def as_tool(function: Callable[..., Any]) -> StructuredTool:
    import inspect

    if inspect.iscoroutinefunction(function):
        return StructuredTool.from_function(coroutine=function, name="shell", description="a shell")
    return StructuredTool.from_function(function, name="shell", description="a shell")


class LangChain(Driver):
    modes = ("sync", "async", "stream")

    def agent(
        self, session: Any, script: Script, tool: Any, before: Any = (), saver: Any = None, **options: Any
    ) -> Any:
        middleware = [*before, GovnodeMiddleware(session, **options)]
        return create_agent(ScriptedModel(script=script), [as_tool(tool)], middleware=middleware, checkpointer=saver)

    def go(self, session: Any, script: Script, tool: Any, **options: Any) -> Seen:
        return self.seen(self.agent(session, script, tool, **options).invoke(INPUT))

    async def ago(self, session: Any, script: Script, tool: Any, mode: str, **options: Any) -> Seen:
        agent = self.agent(session, script, tool, **options)
        if mode == "async":
            return self.seen(await agent.ainvoke(INPUT))
        states = [state async for state in agent.astream(INPUT, stream_mode="values")]
        return self.seen(states[-1])

    @staticmethod
    def seen(state: Any) -> Seen:
        saw = [str(m.content) for m in state["messages"] if isinstance(m, ToolMessage)]
        return Seen(saw, str(state["messages"][-1].content))


DRIVER = LangChain()


class TestLangChain(Laws):
    driver = DRIVER

    def test_denial_is_marked_as_an_error(self, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, [[("shell", {"command": "rm -rf /"})], "done"], Tool().function)
        messages = agent.invoke(INPUT)["messages"]
        assert [m.status for m in messages if isinstance(m, ToolMessage)] == ["error"]

    def test_what_rules_leave_of_a_content_of_blocks(self, client: govnode.Client) -> None:
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")

        def shell(command: str) -> Any:
            return [{"type": "text", "text": f"ran {command}"}]

        agent = DRIVER.agent(session, [[("shell", {"command": "sk-abc"})], "done"], shell)
        (message,) = [m for m in agent.invoke(INPUT)["messages"] if isinstance(m, ToolMessage)]
        assert "ran [REDACTED]" in message.content
        assert (message.tool_call_id, message.status) == ("call-0-0", "success")

    def test_wrong_arguments_are_a_failure(self, session: govnode.Session) -> None:
        DRIVER.run(session, [[("shell", {"wrong": "ls"})], "done"], Tool().function, "sync")
        info = session.read()
        assert (info.executions, info.failures, info.open_calls) == (1, 1, ())

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_interrupt_and_resume_are_one_call(self, session: govnode.Session, mode: str) -> None:
        passes: list[str] = []

        def shell(command: str) -> str:
            passes.append(command)
            return str(interrupt("may I?"))

        async def ashell(command: str) -> str:
            return shell(command)

        agent = DRIVER.agent(
            session,
            [[("shell", {"command": "ls"})], "done"],
            shell if mode == "sync" else ashell,
            saver=InMemorySaver(),
        )
        config = {"configurable": {"thread_id": "thread-1"}}
        if mode == "sync":
            agent.invoke(INPUT, config)
            assert len(session.read().open_calls) == 1
            state = agent.invoke(Command(resume="yes"), config)
        else:
            import asyncio

            async def both() -> Any:
                await agent.ainvoke(INPUT, config)
                return await agent.ainvoke(Command(resume="yes"), config)

            state = asyncio.run(both())
        assert DRIVER.seen(state).model_saw == ["yes"]
        assert passes == ["ls", "ls"]
        info = session.read()
        assert (info.attempts, info.executions, info.failures, info.open_calls) == (1, 1, 0, ())

    def test_retries_of_the_framework_are_calls(self, session: govnode.Session) -> None:
        tried: list[str] = []

        def shell(command: str) -> str:
            tried.append(command)
            if len(tried) < 3:
                raise ValueError("not yet")
            return "at last"

        retry = ToolRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
        agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], shell, before=[retry])
        assert DRIVER.seen(agent.invoke(INPUT)).model_saw == ["at last"]
        info = session.read()
        assert (info.attempts, info.executions, info.failures) == (3, 3, 2)

    def test_what_others_changed_is_judged(self, session: govnode.Session) -> None:
        class Rewriter(AgentMiddleware):
            def wrap_tool_call(self, request: Any, handler: Any) -> Any:
                return handler(request.override(tool_call={**request.tool_call, "args": {"command": "rm -rf /"}}))

        tool = Tool()
        agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], tool.function, before=[Rewriter()])
        assert "Denied" in DRIVER.seen(agent.invoke(INPUT)).model_saw[0]
        assert tool.executed == []

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        agent = DRIVER.agent(session, [[("shell", {"command": "ls"})], "done"], Tool().function)
        stream = agent.stream(INPUT, stream_mode="updates")
        for update in stream:
            if "tools" in update:
                break
        stream.close()
        assert session.read().open_calls == ()

    def test_session_of_each_thread(self, client: govnode.Client, session: govnode.Session) -> None:
        made: list[str] = []

        def of(thread: str) -> govnode.Session:
            made.append(thread)
            session.open()
            return client.session(f"{session.id}-{thread}", agent="tester", policy="plain")

        agent = DRIVER.agent(of, [[("shell", {"command": "ls"})], "done"] * 2, Tool().function)
        for thread in ("a", "b"):
            agent.invoke(INPUT, {"configurable": {"thread_id": thread}})
        assert made == ["a", "b"]
        assert client.get_session(f"{session.id}-a").executions == 1
        assert client.get_session(f"{session.id}-b").executions == 1
