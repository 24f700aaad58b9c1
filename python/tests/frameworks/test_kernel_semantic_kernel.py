"""SemanticKernelWrapper (adapter contract 13) on the real framework and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool, causes

import govnode
from govnode.integration import PolicyViolationError

pytest.importorskip("semantic_kernel", reason="Semantic Kernel is not installed")

from semantic_kernel import Kernel
from semantic_kernel.functions import kernel_function
from test_semantic_kernel import Service

from govnode.integrations import SemanticKernelWrapper, SKContext

SERVICE = Service()


def made(tool: Any) -> Any:
    kernel = Kernel()
    kernel.add_function("tools", kernel_function(name="shell")(tool))
    return kernel


class SemanticKernelDriver(KernelDriver):
    kernel = SemanticKernelWrapper
    factory = "as_filter"
    modes = ("async",)
    filters: tuple[str, ...] = ("auto_function_invocation", "function_invocation")

    def new(self, policy: Any, **options: Any) -> Any:
        return SemanticKernelWrapper(policy=policy, **options)

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        sk = made(tool)
        judge = kernel.as_filter("tester", session_id)
        for kind in self.filters:
            sk.add_filter(kind, judge)
        return await SERVICE.chat(sk, script)

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        sk = made(tool)
        governed = kernel.wrap(sk)
        return (
            sk,
            governed,
            lambda: asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="ls")),
        )


class AutoAlone(SemanticKernelDriver):
    filters = ("auto_function_invocation",)


class FunctionAlone(SemanticKernelDriver):
    filters = ("function_invocation",)


DRIVER = SemanticKernelDriver()


class TestSemanticKernelWrapper(KernelLaws):
    driver = DRIVER

    def test_13_1_1_a_kernel_may_be_given_at_once(self, client: govnode.Client) -> None:
        tool = Tool("async")
        wrapper = SemanticKernelWrapper(made(tool.function), client=client)
        assert wrapper.timeout_seconds == 300.0
        with pytest.warns(DeprecationWarning, match="as_filter"):
            governed = wrapper.wrap()
        asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="ls"))
        assert tool.executed == ["ls"]
        with pytest.warns(DeprecationWarning, match="as_filter"), pytest.raises(TypeError, match="no kernel"):
            SemanticKernelWrapper(client=client).wrap()

    def test_13_2_both_filters_are_one_call(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        DRIVER.run(kernel, LS, Tool("async").function, "async")
        info = client.get_session(kernel.contexts["tester"].session_id)
        assert (info.attempts, info.executions, info.open_calls) == (1, 1, ())

    def test_13_2_a_clone_is_governed_too(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool("async")
        sk = made(tool.function)
        sk.add_filter("function_invocation", kernel.as_filter("tester"))
        asyncio.run(sk.clone().invoke(plugin_name="tools", function_name="shell", command="ls"))
        assert client.get_session(kernel.contexts["tester"].session_id).executions == 1

    def test_13_3_signals_are_checked_before_anything(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        tool = Tool("async")
        kernel.signal_stop()
        assert kernel._stopped
        assert "stopped" in DRIVER.told(kernel, LS, tool.function, "async")
        kernel.signal_continue()
        assert not kernel._stopped
        DRIVER.run(kernel, LS, tool.function, "async")
        kernel.signal_kill()
        assert kernel._killed
        assert tool.executed == ["ls"]

    def test_13_4_the_context(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        DRIVER.run(kernel, LS, Tool("async").function, "async")
        ctx = kernel.contexts["tester"]
        assert isinstance(ctx, SKContext)
        assert ctx.kernel_id
        assert ctx.plugins_loaded == ["tools"]
        assert [(f["plugin"], f["function"]) for f in ctx.functions_invoked] == [("tools", "shell")]
        assert (ctx.prompt_tokens, ctx.completion_tokens, ctx.memory_operations) == (0, 0, [])

    def test_13_5_memories_are_looked_at(self, client: govnode.Client) -> None:
        saved: list[str] = []

        class Memory:
            async def save_information(self, collection: str, text: str, id: str) -> None:
                saved.append(text)

            async def search(self, collection: str, query: str) -> list[str]:
                return [t for t in saved if query in t]

        kernel: Any = DRIVER.make(client)
        sk = made(Tool("async").function)
        object.__setattr__(sk, "memory", Memory())
        with pytest.warns(DeprecationWarning, match="as_filter"):
            governed = kernel.wrap(sk)

        async def scenario() -> None:
            await governed.save_information("notes", "all is well", "1")
            for text in ("I am jane@example.org", "rm -rf"):
                with pytest.raises(PolicyViolationError):
                    await governed.save_information("notes", text, "2")
            assert await governed.search("notes", "well") == ["all is well"]

        asyncio.run(scenario())
        assert saved == ["all is well"]
        ctx = kernel.contexts["semantic-kernel"]
        assert [(m["operation"], m["allowed"]) for m in ctx.memory_operations] == [
            ("save", True),
            ("save", False),
            ("save", False),
            ("search", True),
        ]

    def test_13_5_a_denied_function_raises(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool("async")
        with pytest.warns(DeprecationWarning, match="as_filter"):
            governed = kernel.wrap(made(tool.function))
        with pytest.raises(Exception) as raised:  # noqa: PT011
            asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="rm -rf /"))
        assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == []

    def test_a_wrapped_kernel_has_a_timeout(self, client: govnode.Client) -> None:
        async def shell(command: str) -> str:
            await asyncio.Event().wait()
            return ""

        kernel: Any = DRIVER.make(client, timeout_seconds=0.05)
        with pytest.warns(DeprecationWarning, match="as_filter"):
            governed = kernel.wrap(made(shell))
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="ls"))


class TestAutoAlone(KernelLaws):
    driver = AutoAlone()


class TestFunctionAlone(KernelLaws):
    driver = FunctionAlone()
