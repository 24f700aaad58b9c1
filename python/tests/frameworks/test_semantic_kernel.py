from __future__ import annotations

import asyncio
import functools
import json
from contextvars import ContextVar
from typing import Any

import pytest
from conftest import eventually
from laws import SCRIPT, Driver, Laws, Script, Seen, Tool

import govnode
from govnode.adapters import Killed

pytest.importorskip("semantic_kernel", reason="Semantic Kernel is not installed")

from semantic_kernel import Kernel
from semantic_kernel.agents import (
    ChatCompletionAgent,
    ChatHistoryAgentThread,
    HandoffOrchestration,
    OrchestrationHandoffs,
)
from semantic_kernel.agents.runtime import InProcessRuntime
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
from semantic_kernel.functions import KernelArguments, kernel_function

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


COMMAND = {"command": "ls"}
ONCE: Script = [[("shell", COMMAND)], "done"]


def go(kernel: Any, script: Script = ONCE, mode: str = "async") -> Seen:
    return asyncio.run(SERVICE.chat(kernel, script, mode))


async def rewrite(context: Any, next: Any) -> None:
    context.arguments["command"] = "rm -rf /"
    await next(context)


async def plain_rewrite(context: Any, next: Any, to: str) -> None:
    context.arguments = KernelArguments(command=to)
    await next(context)


class TestSemanticKernel(Laws):
    driver = SERVICE

    @pytest.mark.parametrize("later", [True, False])
    @pytest.mark.parametrize("kind", ["auto_function_invocation", "function_invocation"])
    @pytest.mark.parametrize("other", [rewrite, functools.partial(plain_rewrite, to="rm -rf /")])
    def test_what_others_changed_is_judged(self, session: govnode.Session, later: bool, kind: Any, other: Any) -> None:
        """Who adds a filter later stands behind, where the verdict would be of arguments that do not run."""
        tool, kernel = Tool("async"), Kernel()
        kernel.add_function("tools", kernel_function(name="shell")(tool.function))
        if not later:
            kernel.add_filter(kind, other)
        govern(kernel, session)
        if later:
            kernel.add_filter(kind, other)
        assert "rm -rf" in go(kernel).model_saw[0]
        assert tool.executed == []

    def test_filters_keep_their_order(self, session: govnode.Session) -> None:
        met: list[str] = []

        def noting(name: str) -> Any:
            async def note(context: Any, next: Any) -> None:
                met.append(name)
                await next(context)
                met.append(f"{name} after: {context.result}")

            return note

        kernel = kernel_of(Tool("async").function, session)
        for name in ("a", "b"):
            kernel.add_filter("function_invocation", noting(name))
        go(kernel)
        assert met == ["a", "b", "b after: ran ls", "a after: ran ls"]

    def test_what_cannot_be_judged_is_denied(self, session: govnode.Session) -> None:
        class Hiding(Kernel):
            """Makes of the stack of filters something else than Semantic Kernel does."""

            def construct_call_stack(self, filter_type: Any, inner_function: Any) -> Any:
                async def hidden(context: Any) -> None:
                    await inner_function(context)

                return super().construct_call_stack(filter_type, hidden)

        tool = Tool("async")
        kernel = Hiding()
        kernel.add_function("tools", kernel_function(name="shell")(tool.function))
        assert "what would run is unknown" in go(govern(kernel, session)).model_saw[0]

        kernel = kernel_of(tool.function, session)
        kernel.function_invocation_filters.clear()
        assert "no longer there" in go(kernel).model_saw[0]

        kernel = kernel_of(tool.function, session, conversation=ContextVar[str]("unset").get)
        assert "LookupError" in go(kernel).model_saw[0]
        assert tool.executed == []

    def test_call_has_the_id_of_the_model(self, session: govnode.Session) -> None:
        """And what a function calls is a call of its own."""
        ids: list[list[str]] = []
        kernel = Kernel()

        @kernel_function(name="inner")
        async def inner(command: str) -> str:
            ids.append(sorted(c.call_id.split("/")[1] for c in session.read().open_calls))
            return "ran"

        @kernel_function(name="shell")
        async def shell(command: str) -> str:
            return str(await kernel.invoke(plugin_name="tools", function_name="inner", command=command))

        kernel.add_functions("tools", [inner, shell])
        go(govern(kernel, session))
        assert len(ids[0]) == 2
        assert "call-0-0" in ids[0]
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (2, 2, ())

    def test_retry_is_another_call(self, session: govnode.Session) -> None:
        tries: list[str] = []

        async def shell(command: str) -> str:
            tries.append(next(c.call_id for c in session.read().open_calls))
            if len(tries) == 1:
                raise ValueError("not yet")
            return "ran"

        async def retry(context: Any, next: Any) -> None:
            try:
                await next(context)
            except ValueError:
                await next(context)

        kernel = kernel_of(shell, session)
        kernel.add_filter("function_invocation", retry)
        assert go(kernel).model_saw == ["ran"]
        assert [t.split("/")[1] for t in tries] == ["call-0-0", "call-0-0:2"]
        info = session.read()
        assert (info.executions, info.failures) == (2, 1)

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_parallel_calls(self, session: govnode.Session, mode: str) -> None:
        """They run at once, and each has its own answer."""
        running = 0
        both = asyncio.Event()

        async def shell(command: str) -> str:
            nonlocal running
            running += 1
            if running == 2:
                both.set()
            await asyncio.wait_for(both.wait(), 30)
            return f"ran {command}"

        calls = [("shell", {"command": c}) for c in ("ls", "rm -rf /", "ps")]
        seen = go(kernel_of(shell, session), [calls, "done"], mode)
        assert len(seen.model_saw) == 3
        assert {"ran ls", "ran ps"} < set(seen.model_saw)
        assert session.read().executions == 2

    @pytest.mark.parametrize("mode", ["async", "stream"])
    def test_kill_cancels_what_was_called_at_once(
        self, client: govnode.Client, session: govnode.Session, mode: str
    ) -> None:
        async def scenario() -> None:
            hangs, cancelled = asyncio.Event(), asyncio.Event()

            async def shell(command: str) -> str:
                hangs.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
                return ""

            async def kill(context: Any, next: Any) -> None:
                if context.arguments["command"] == "kill":
                    await asyncio.wait_for(hangs.wait(), 30)
                    client.signal("KILL", session_id=session.id, reason="enough")
                await next(context)

            kernel = kernel_of(shell, session)
            kernel.add_filter("auto_function_invocation", kill)
            calls = [("shell", {"command": c}) for c in ("hang", "kill")]
            with pytest.raises(Killed):
                await asyncio.wait_for(SERVICE.chat(kernel, [calls, "done"], mode), 60)
            await asyncio.wait_for(cancelled.wait(), 30)
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())

    def test_interrupt_gives_the_slot_back(self, session: govnode.Session) -> None:
        def shell(command: str) -> str:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            go(kernel_of(shell, session))
        eventually(lambda: session.read().open_calls == ())
        assert session.read().executions == 1

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_filters_that_raise(self, session: govnode.Session, when: str) -> None:
        async def other(context: Any, next: Any) -> None:
            if when == "after":
                await next(context)
            raise ValueError("no")

        session.open()
        tool = Tool("async")
        kernel = kernel_of(tool.function, session)
        kernel.add_filter("function_invocation", other)
        go(kernel)
        info = session.read()
        assert (len(tool.executed), info.executions, info.open_calls) == ((when == "after"), (when == "after"), ())

    def test_arguments_of_the_run_are_not_of_the_call(self, session: govnode.Session) -> None:
        """Unless a function takes them all."""
        kernel, note = Kernel(), KernelArguments(note="rm -rf /", command="ls")

        @kernel_function(name="all")
        def takes_all(command: str, arguments: Any) -> str:
            return "ran"

        kernel.add_functions("tools", [kernel_function(name="shell")(Tool("async").function), takes_all])
        govern(kernel, session)
        ran = asyncio.run(kernel.invoke(plugin_name="tools", function_name="shell", arguments=note))
        assert str(ran) == "ran ls"
        denied = asyncio.run(kernel.invoke(plugin_name="tools", function_name="all", arguments=note))
        assert "rm -rf" in str(denied)

    def test_session_of_each_conversation(self, client: govnode.Client, session: govnode.Session) -> None:
        session.open()
        name = ContextVar[str]("conversation")

        def of(name: str) -> govnode.Session:
            return client.session(f"{session.id}-{name}", agent="tester", policy="plain")

        kernel = kernel_of(Tool().function, of, conversation=name.get)

        async def chat(of: str) -> None:
            name.set(of)
            await SERVICE.chat(kernel, ONCE)

        async def scenario() -> None:
            await asyncio.gather(chat("a"), chat("b"))

        asyncio.run(scenario())
        assert [client.get_session(f"{session.id}-{n}").executions for n in "ab"] == [1, 1]

    def test_names_with_their_plugin(self, client: govnode.Client) -> None:
        client.put_policy("name: qualified\nallowed_tools: [tools-shell]\n")
        for qualified in (True, False):
            session = client.session(agent="tester", policy="qualified")
            go(kernel_of(Tool().function, session, qualified=qualified))
            assert session.read().executions == qualified

    def test_a_kernel_is_governed_once(self, session: govnode.Session) -> None:
        """And its clones are governed with it."""
        tool = Tool("async")
        clone = kernel_of(tool.function, session).clone()
        with pytest.raises(ValueError, match="already"):
            govern(clone, session)
        assert "rm -rf" in go(clone, SCRIPT).model_saw[1]
        info = session.read()
        assert (tool.executed, info.attempts, info.executions) == (["ls"], 2, 1)


class TestChatCompletionAgent(Laws):
    driver = DRIVER

    def test_agent_as_a_tool(self, client: govnode.Client, session: govnode.Session) -> None:
        """Its call lasts as long as its own run, and both end with the session."""
        open_calls: list[int] = []

        async def shell(command: str) -> str:
            open_calls.append(len(session.read().open_calls))
            if len(open_calls) == 2:
                client.signal("KILL", session_id=session.id, reason="enough")
            return "ran"

        script: Script = [[("shell", COMMAND)]] * 4
        inside = ChatCompletionAgent(
            name="helper", kernel=kernel_of(shell, session), service=ScriptedService([*script, "inside"])
        )
        kernel = Kernel()
        kernel.add_plugin(inside, "helpers")
        with pytest.raises(Killed):
            go(govern(kernel, session), [[("helpers-helper", {"messages": "go"})]] * 3)
        assert open_calls == [2, 2]
        eventually(lambda: session.read().open_calls == ())

    @pytest.mark.parametrize("allowed", [True, False])
    def test_handoff_is_a_call(self, client: govnode.Client, allowed: bool) -> None:
        """It goes through a clone of the agent's kernel."""
        limits = "max_handoffs: 1" if allowed else "max_handoffs: 0\nallowed_tools: [shell]"
        client.put_policy(f"name: sk-handoff-{allowed}\n{limits}\n")
        session = client.session(agent="tester", policy=f"sk-handoff-{allowed}")

        async def scenario() -> str:
            first = ChatCompletionAgent(
                name="first",
                kernel=govern(Kernel(), session),
                service=ScriptedService([[("Handoff-transfer_to_second", {})]]),
            )
            second = ChatCompletionAgent(name="second", service=ScriptedService(["done"]))
            handoffs = OrchestrationHandoffs().add("first", "second")
            orchestration = HandoffOrchestration(members=[first, second], handoffs=handoffs)
            runtime = InProcessRuntime()
            runtime.start()
            try:
                result = await orchestration.invoke(task="go", runtime=runtime)
                return str(await result.get(30))
            finally:
                await runtime.stop()

        if not allowed:
            with pytest.raises(RuntimeError, match="did not return any response"):
                asyncio.run(scenario())
            assert session.read().executions == 0
            return
        assert "Task is completed" in asyncio.run(scenario())
        assert session.read().executions == 1

    def test_closed_stream_gives_the_slot_back(self, session: govnode.Session) -> None:
        async def scenario() -> None:
            started = asyncio.Event()

            async def shell(command: str) -> str:
                started.set()
                await asyncio.Event().wait()
                return ""

            run = asyncio.create_task(DRIVER.ago(session, ONCE, shell, "stream"))
            await asyncio.wait_for(started.wait(), 30)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())
