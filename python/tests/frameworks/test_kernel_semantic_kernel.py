"""SemanticKernelWrapper (adapter contract 13) on the real framework and a real node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool, causes

import govnode
from govnode.integration import PolicyViolationError

pytest.importorskip("semantic_kernel", reason="Semantic Kernel is not installed")

from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.completion_usage import CompletionUsage
from semantic_kernel.contents import AuthorRole, ChatMessageContent
from semantic_kernel.exceptions import KernelInvokeException
from semantic_kernel.functions import kernel_function
from test_semantic_kernel import ScriptedService, Service

from govnode.adapters import Killed
from govnode.integrations import SemanticKernelWrapper, SKContext

SERVICE = Service()
KINDS = ("auto_function_invocation", "function_invocation")


def made(tool: Any) -> Any:
    kernel = Kernel()
    kernel.add_function("tools", kernel_function(name="shell")(tool))
    return kernel


class SemanticKernelDriver(KernelDriver):
    kernel = SemanticKernelWrapper
    factory = "as_filter"
    modes = ("async",)
    filters: tuple[str, ...] = KINDS

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


def new(client: govnode.Client, policy: Any = None) -> Any:
    return DRIVER.make(client, policy)


class TestFilters:
    """Section 13.2: how the filters are added must not matter."""

    @staticmethod
    def ran(client: govnode.Client, kinds: tuple[str, ...], *, one: bool) -> tuple[list[str], int]:
        kernel, tool = new(client), Tool("async")
        sk = made(tool.function)
        judge = kernel.as_filter()
        for kind in kinds:
            sk.add_filter(kind, judge if one else kernel.as_filter())
        asyncio.run(SERVICE.chat(sk, LS))
        return tool.executed, client.get_session(kernel.contexts["semantic-kernel"].session_id).attempts

    @pytest.mark.parametrize("one", [False, True], ids=["each", "one"])
    @pytest.mark.parametrize("kinds", [*((k,) for k in KINDS), KINDS, KINDS[::-1], KINDS[1:] * 2, KINDS * 2], ids=str)
    def test_one_call_is_one(self, client: govnode.Client, kinds: tuple[str, ...], one: bool) -> None:
        assert self.ran(client, kinds, one=one) == (["ls"], 1)

    def test_other_agents_and_sessions_are_others(self, client: govnode.Client) -> None:
        kernel = new(client)
        assert kernel.as_filter("a") is kernel.as_filter("a")
        assert len({id(kernel.as_filter(a, s)) for a in ("a", "b") for s in (None, "s")}) == 4
        assert kernel.as_filter("a", wait=1.0) is not kernel.as_filter("a", wait=2.0)
        before = kernel.as_filter("c")
        kernel.create_context("c")  # the old one is replaced
        assert kernel.as_filter("c") is not before


class TestResults:
    """What a model is told of a function is looked at, whatever shape it has."""

    @pytest.mark.parametrize(
        "value",
        [
            {"a": "FORBIDDEN-WORD", "b": "fine"},
            ["fine", "FORBIDDEN-WORD"],
            [{"x": ["fine", "FORBIDDEN-WORD"]}],
            ValueError("it is FORBIDDEN-WORD"),
        ],
        ids=["dict", "list", "nested", "error"],
    )
    def test_all_of_it(self, client: govnode.Client, value: Any) -> None:
        async def shell(command: str) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        kernel = new(client, {"blocked_patterns": ["forbidden-word"]})
        sk = made(shell)
        for kind in KINDS:
            sk.add_filter(kind, kernel.as_filter())
        seen = asyncio.run(SERVICE.chat(sk, LS))
        assert "FORBIDDEN-WORD" not in seen.model_saw[0]
        assert "Denied by govnode" in seen.model_saw[0]

    def test_messages_of_a_function(self, client: govnode.Client) -> None:
        async def shell(command: str) -> Any:
            return [ChatMessageContent(role=AuthorRole.ASSISTANT, content=t) for t in ("fine", "FORBIDDEN-WORD")]

        kernel = new(client, {"blocked_patterns": ["forbidden-word"]})
        sk = made(shell)
        sk.add_filter("function_invocation", kernel.as_filter())
        result = asyncio.run(sk.invoke(plugin_name="tools", function_name="shell", command="ls"))
        assert "FORBIDDEN-WORD" not in repr(result.value)


class TestPrompts:
    def test_tokens(self, client: govnode.Client) -> None:
        class Using(ScriptedService):
            async def _inner_get_chat_message_contents(self, *args: Any) -> Any:
                said = await super()._inner_get_chat_message_contents(*args)
                said[0].metadata = {"usage": CompletionUsage(prompt_tokens=3, completion_tokens=5)}
                return said

        kernel, sk = new(client), made(Tool("async").function)
        sk.add_filter("function_invocation", kernel.as_filter("tester"))
        sk.add_service(Using(["hi", "ho"]))
        for _ in range(2):
            asyncio.run(sk.invoke_prompt("hello", function_name="p", plugin_name="q"))
        ctx = kernel.contexts["tester"]
        assert (ctx.prompt_tokens, ctx.completion_tokens) == (6, 10)

    def test_what_is_rendered_into_one(self, client: govnode.Client) -> None:
        read: list[str] = []

        class Reading(ScriptedService):
            async def _inner_get_chat_message_contents(self, h: Any, s: Any) -> Any:
                read.extend(str(m) for m in h.messages)
                return await super()._inner_get_chat_message_contents(h, s)

        kernel, sk = new(client), made(Tool("async").function)
        sk.add_service(Reading(["hi"]))
        with pytest.warns(DeprecationWarning, match="as_filter"):
            governed = kernel.wrap(sk)
        with contextlib.suppress(PolicyViolationError, KernelInvokeException):
            asyncio.run(governed.invoke_prompt("mail {{$who}}", who="jane@example.org"))
        assert "jane@example.org" not in str(read)


class TestSignals:
    """Section 13.3: governed operations must look at the flags first."""

    def test_kill_ends_the_run(self, client: govnode.Client) -> None:
        kernel, tool = new(client), Tool("async")
        sk = made(tool.function)
        for kind in KINDS:
            sk.add_filter(kind, kernel.as_filter())
        kernel.signal_kill()
        assert (kernel._killed, kernel._stopped) == (True, False)
        with pytest.raises(Killed):
            asyncio.run(SERVICE.chat(sk, LS))
        assert tool.executed == []

    @pytest.mark.parametrize("signal", ["stop", "kill"])
    def test_memory(self, client: govnode.Client, signal: str) -> None:
        kernel, governed, memory = remembering(client)
        getattr(kernel, f"signal_{signal}")()
        with pytest.raises(PolicyViolationError):
            asyncio.run(governed.save_information("notes", "well", "1"))
        with pytest.raises(PolicyViolationError):
            asyncio.run(governed.search("notes", "well"))
        assert (memory.saved, memory.asked) == ([], [])
        if signal == "stop":
            kernel.signal_continue()
            assert not kernel._stopped
            asyncio.run(governed.save_information("notes", "well", "1"))
            assert memory.saved == ["well"]
        assert [m["allowed"] for m in kernel.contexts["semantic-kernel"].memory_operations[:2]] == [False, False]

    @pytest.mark.parametrize("signal", ["stop", "kill"])
    def test_wrapped(self, client: govnode.Client, signal: str) -> None:
        kernel, governed, _ = remembering(client)
        getattr(kernel, f"signal_{signal}")()
        with pytest.raises((PolicyViolationError, KernelInvokeException)):
            asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="ls"))


class Memory:
    def __init__(self) -> None:
        self.saved: list[str] = []
        self.asked: list[str] = []

    async def save_information(self, collection: str, text: str, id: str) -> None:
        self.saved.append(text)

    async def search(self, collection: str, query: str) -> list[str]:
        self.asked.append(query)
        return ["fine", "the FORBIDDEN-WORD is here"]


def remembering(client: govnode.Client, **policy: Any) -> tuple[Any, Any, Memory]:
    kernel, memory = new(client, policy or None), Memory()
    sk = made(Tool("async").function)
    object.__setattr__(sk, "memory", memory)
    with pytest.warns(DeprecationWarning, match="as_filter"):
        return kernel, kernel.wrap(sk), memory


def test_what_a_memory_holds_is_looked_at(client: govnode.Client) -> None:
    _, governed, _ = remembering(client, blocked_patterns=["forbidden-word"])
    with pytest.raises(PolicyViolationError):
        asyncio.run(governed.search("notes", "well"))


def test_one_invocation_is_one_call(client: govnode.Client) -> None:
    kernel, governed, _ = remembering(client)
    asyncio.run(governed.invoke(plugin_name="tools", function_name="shell", command="ls"))
    assert client.get_session(kernel.contexts["semantic-kernel"].session_id).executions == 1
