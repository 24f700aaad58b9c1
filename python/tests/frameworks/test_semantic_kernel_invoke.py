from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from laws import RULES, Guard, Tool

import govnode
from govnode.adapters import Killed, PolicyViolationError

pytest.importorskip("semantic_kernel", reason="Semantic Kernel is not installed")

from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.exceptions import KernelInvokeException
from semantic_kernel.functions import KernelArguments, kernel_function
from test_semantic_kernel import ONCE, ScriptedService, go, kernel_of

from govnode.adapters.semantic_kernel import govern


class TestInvoke:
    """Functions that a program or a template calls: no auto function invocation is there."""

    @staticmethod
    def invoke(kernel: Any, command: str) -> Any:
        return asyncio.run(kernel.invoke(plugin_name="tools", function_name="shell", command=command))

    def test_allow_and_deny(self, session: govnode.Session) -> None:
        tool = Tool("async")
        kernel = kernel_of(tool.function, session)
        assert str(self.invoke(kernel, "ls")) == "ran ls"
        denied = self.invoke(kernel, "rm -rf /")
        assert "rm -rf" in str(denied)
        assert denied.metadata == {"govnode": "DENIED_BY_POLICY"}
        info = session.read()
        assert (tool.executed, info.attempts, info.executions) == (["ls"], 2, 1)

    def test_raise_in_place_of_telling(self, session: govnode.Session) -> None:
        kernel = kernel_of(Tool("async").function, session, on_denied="raise")
        with pytest.raises(KernelInvokeException) as raised:
            self.invoke(kernel, "rm -rf /")
        assert isinstance(raised.value.__cause__, PolicyViolationError)

    def test_killed_session(self, client: govnode.Client, session: govnode.Session) -> None:
        kernel = kernel_of(Tool("async").function, session)
        session.open()
        client.signal("KILL", session_id=session.id, reason="enough")
        with pytest.raises(KernelInvokeException) as raised:
            self.invoke(kernel, "ls")
        assert isinstance(raised.value.__cause__, Killed)

    def test_denial_inside_a_function_ends_the_run(self, session: govnode.Session) -> None:
        """The model would read the exception that the function does not catch."""

        @kernel_function(name="outer")
        async def outer() -> Any:
            await kernel.invoke(plugin_name="tools", function_name="shell", command="rm -rf /")
            went_on.append(True)

        went_on: list[bool] = []
        kernel = kernel_of(Tool("async").function, session, on_denied="raise")
        kernel.add_function("tools", outer)
        with pytest.raises(PolicyViolationError, match="rm -rf"):
            go(kernel, [[("outer", {})], "done"])
        assert went_on == []

    def test_denial_of_a_model_inside_a_prompt_function_ends_the_run(self, session: govnode.Session) -> None:
        kernel = kernel_of(Tool("async").function, session, on_denied="raise")
        kernel.add_service(ScriptedService([[("shell", {"command": "rm -rf /"})], "inside"]))
        settings = PromptExecutionSettings(function_choice_behavior=FunctionChoiceBehavior.Auto())
        kernel.add_function("tools", function_name="ask", prompt="go", prompt_execution_settings=settings)
        with pytest.raises(PolicyViolationError, match="rm -rf"):
            go(kernel, [[("ask", {})], "done"])

    def test_changed_arguments_leave_those_of_the_caller(self, client: govnode.Client) -> None:
        tool = Tool("async")
        with Guard() as url:
            client.put_policy(f'name: sk-guarded\nguardrails: [{{name: longer, url: "{url}", timeout_ms: 5000}}]\n')
            kernel = kernel_of(tool.function, client.session(agent="tester", policy="sk-guarded"))
            given = KernelArguments(command="ls")
            asyncio.run(kernel.invoke(plugin_name="tools", function_name="shell", arguments=given))
        assert tool.executed == ["ls -l"]
        assert given["command"] == "ls"

    def test_arguments_that_change_meanwhile(self, session: govnode.Session) -> None:
        """They were not judged."""
        tool = Tool("async")
        kernel, given = kernel_of(tool.function, session), KernelArguments(command="ls")

        async def scenario() -> None:
            call = asyncio.create_task(kernel.invoke(plugin_name="tools", function_name="shell", arguments=given))
            await asyncio.sleep(0)  # the service is being asked
            given["command"] = "rm -rf /"
            with pytest.raises(KernelInvokeException) as raised:
                await call
            assert "changed" in str(raised.value.__cause__)

        asyncio.run(scenario())
        assert tool.executed == []
        assert session.read().open_calls == ()

    def test_template(self, client: govnode.Client) -> None:
        """A prompt function is a call, and so is each function that its template or its model calls."""
        client.put_policy("name: sk-template\nallowed_tools: [ask, shell]\n")
        session = client.session(agent="tester", policy="sk-template")
        tool, other = Tool("async"), Tool("async")
        kernel = kernel_of(tool.function, session)
        kernel.add_function("tools", kernel_function(name="other")(other.function))
        kernel.add_service(ScriptedService(ONCE))
        settings = PromptExecutionSettings(function_choice_behavior=FunctionChoiceBehavior.Auto())
        prompt = "{{tools.shell command='ps'}} {{tools.other command='ps'}}"
        arguments = KernelArguments(settings=settings)
        answer = asyncio.run(kernel.invoke_prompt(prompt, function_name="ask", arguments=arguments))
        assert str(answer) == "done"
        assert (tool.executed, other.executed) == (["ps", "ls"], [])
        info = session.read()
        assert (info.attempts, info.executions, info.open_calls) == (4, 3, ())

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("until", ["end", "closed", "failed", "unread"])
    def test_streams(self, session: govnode.Session, kind: str, until: str, caplog: pytest.LogCaptureFixture) -> None:
        """Their call lasts as long as they are read."""
        # Semantic Kernel leaves a closed stream to the garbage collection. Its telemetry logs an exception then, and
        # who keeps that keeps the stream.
        caplog.set_level("CRITICAL", "opentelemetry.context")
        open_calls: list[int] = []

        def values(command: str) -> Any:
            open_calls.append(len(session.read().open_calls))
            yield "a"
            if until == "failed":
                raise ValueError("no")
            open_calls.append(len(session.read().open_calls))
            yield "b"

        async def avalues(command: str) -> Any:
            for value in values(command):
                yield value

        async def drop(context: Any, next: Any) -> None:
            await next(context)
            if until == "unread":
                context.result = None

        kernel = Kernel()
        kernel.add_filter("function_invocation", drop)
        kernel.add_function("tools", kernel_function(name="shell")(values if kind == "sync" else avalues))
        govern(kernel, session)

        async def scenario() -> None:
            read = []
            stream = kernel.invoke_stream(plugin_name="tools", function_name="shell", command="ls")
            try:
                async for value in stream:
                    read.append(value)
                    if until == "closed":
                        break
            except ValueError:
                assert until == "failed"
            await stream.aclose()
            assert read == {"end": ["a", "b"], "unread": []}.get(until, ["a"])
            await asyncio.to_thread(eventually, lambda: session.read().open_calls == ())

        asyncio.run(scenario())
        assert open_calls == [1] * {"end": 2, "unread": 0}.get(until, 1)
        info = session.read()
        assert (info.executions, info.failures) == (1, until == "failed")

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_what_rules_leave_of_a_stream_that_fails(self, client: govnode.Client, kind: str) -> None:
        client.put_policy(RULES)
        session = client.session(agent="tester", policy="reviewed")

        def values(command: str) -> Any:
            yield "a"
            raise ValueError("no such key: sk-abc")

        async def avalues(command: str) -> Any:
            for value in values(command):
                yield value

        async def scenario() -> None:
            kernel = kernel_of(values if kind == "sync" else avalues, session)
            stream = kernel.invoke_stream(plugin_name="tools", function_name="shell", command="ls")
            with pytest.raises(ValueError, match="no such key") as raised:
                assert [value async for value in stream] == []
            assert "sk-abc" not in str(raised.value)

        asyncio.run(scenario())
        eventually(lambda: session.read().open_calls == ())
        assert session.read().failures == 1

    def test_denied_stream(self, session: govnode.Session) -> None:
        kernel = kernel_of(Tool("async").function, session)

        async def scenario() -> list[Any]:
            stream = kernel.invoke_stream(plugin_name="tools", function_name="shell", command="rm -rf /")
            return [value async for value in stream]

        assert ["rm -rf" in str(value) for value in asyncio.run(scenario())] == [True]
