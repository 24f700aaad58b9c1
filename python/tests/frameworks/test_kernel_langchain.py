"""LangChainKernel (adapter contract 7) on the real framework and a real node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import RULES, Script, Seen, Tool

import govnode
from govnode.integration import PolicyViolationError, ToolCallRequest, ToolCallResult

pytest.importorskip("langchain.agents", reason="LangChain is not installed")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_core.tools import Tool as LangChainTool
from test_langchain import INPUT, LangChain, ScriptedModel, as_tool

from govnode.integrations import LangChainKernel


class LangChainKernelDriver(KernelDriver):
    kernel = LangChainKernel
    factory = "as_middleware"

    def agent(self, kernel: Any, script: Script, tool: Any, session_id: str | None = None) -> Any:
        middleware = [kernel.as_middleware("tester", session_id)]
        return create_agent(ScriptedModel(script=script), [as_tool(tool)], middleware=middleware)

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        return LangChain.seen(self.agent(kernel, script, tool, session_id).invoke(INPUT))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        return LangChain.seen(await self.agent(kernel, script, tool, session_id).ainvoke(INPUT))

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent: Any = create_agent(ScriptedModel(script=script), [as_tool(tool)])
        governed = kernel.wrap(agent, "tester")
        return agent, governed, lambda: governed.invoke(INPUT)


DRIVER = LangChainKernelDriver()


class TestLangChainKernel(KernelLaws):
    driver = DRIVER

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_7_2_1_what_goes_to_the_model_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
        agent = DRIVER.agent(kernel, ["done"], Tool(mode).function)
        asked = {"messages": [{"role": "user", "content": "Open Sesame, please"}]}
        with pytest.raises(PolicyViolationError, match="the input holds blocked_patterns"):
            agent.invoke(asked) if mode == "sync" else asyncio.run(agent.ainvoke(asked))
        assert kernel.get_violations()[0].category == "blocked_pattern_input"

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_7_2_1_what_the_model_says_is_looked_at(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
        with pytest.raises(PolicyViolationError):
            DRIVER.run(kernel, ["Open Sesame"], Tool(mode).function, mode)

    def test_7_4_private_data_comes_redacted_to_the_model(self, client: govnode.Client) -> None:
        read: list[str] = []

        class Reading(ScriptedModel):
            def _generate(self, messages: Any, *args: Any, **named: Any) -> Any:
                read.extend(str(m.content) for m in messages)
                return super()._generate(messages, *args, **named)

        kernel = DRIVER.make(client)
        middleware: Any = [kernel.as_middleware()]  # type: ignore[attr-defined]
        agent: Any = create_agent(Reading(script=["done"]), [], middleware=middleware)
        agent.invoke({"messages": [{"role": "user", "content": "write to jane@example.org, 123-45-6789"}]})
        assert "jane@example.org" not in read[0]
        assert "123-45-6789" not in read[0]
        with pytest.raises(PolicyViolationError):
            agent.invoke({"messages": [{"role": "user", "content": "api_key=hunter2hunter2"}]})

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_7_3_tools_of_a_wrapped_agent_are_governed(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        tool = Tool(mode)
        agent: Any = create_agent(
            ScriptedModel(script=[[("shell", {"command": "rm -rf /"})], "done"]), [as_tool(tool.function)]
        )
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            governed = kernel.wrap(agent)
        with pytest.raises(PolicyViolationError, match="rm -rf"):
            governed.invoke(INPUT) if mode == "sync" else asyncio.run(governed.ainvoke(INPUT))
        assert tool.executed == []
        assert isinstance(kernel, LangChainKernel)
        assert [i["tool_name"] for i in kernel._tool_invocations] == ["shell"]
        assert kernel.unwrap(governed) is agent  # and its tools are as they were
        agent.nodes["agent" if "agent" in agent.nodes else "model"].bound  # noqa: B018
        assert "_run" not in vars(agent.nodes["tools"].bound.tools_by_name["shell"])

    def test_7_3_rules_look_at_the_content_of_a_tool_and_leave_no_artifact(self, client: govnode.Client) -> None:
        client.put_policy(RULES)

        def shell(command: str) -> Any:
            return "the sk-abc", {"key": "sk-abc"}

        tool = StructuredTool.from_function(
            shell, name="shell", description="a shell", response_format="content_and_artifact"
        )
        agent: Any = create_agent(ScriptedModel(script=LS), [tool])
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            seen = LangChainKernel("reviewed", client=client).wrap(agent).invoke(INPUT)
        (told,) = [m for m in seen["messages"] if m.type == "tool"]
        assert told.content.startswith("the [REDACTED]")
        assert told.artifact is None

    def test_7_3_without_deep_hooks_tools_are_left_alone(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client, deep_hooks_enabled=False)
        tool = Tool()
        agent: Any = create_agent(ScriptedModel(script=LS), [as_tool(tool.function)])
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            kernel.wrap(agent).invoke(INPUT)
        assert "_run" not in vars(agent.nodes["tools"].bound.tools_by_name["shell"])

    def test_7_3_a_tool_of_one_text_gets_what_an_interceptor_left(self, client: govnode.Client) -> None:
        """LangChain hands that on by its place: what was taken out is not there any more."""

        class Empty:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                return ToolCallResult(True, modified_arguments={})

        ran: list[str] = []

        def search(query: str = "nothing") -> str:
            ran.append(query)
            return query

        tool = LangChainTool(name="search", description="Searches.", func=search)
        kernel = DRIVER.make(client, interceptors=[Empty()])
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            kernel.wrap(SimpleNamespace(tools=[tool]))
        assert tool.run("secret") == "nothing"
        assert ran == ["nothing"]

    def test_7_3_memory_is_looked_at(self, client: govnode.Client) -> None:
        saved: list[Any] = []

        class Memory:
            def save_context(self, inputs: Any, outputs: Any) -> None:
                saved.append(inputs)

        class Chain:
            memory = Memory()

            def invoke(self, input: Any) -> Any:
                self.memory.save_context({"input": input}, {"output": "fine"})
                return "fine"

        kernel = DRIVER.make(client)
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            governed = kernel.wrap(Chain())
        assert governed.invoke("hello") == "fine"
        with pytest.raises(PolicyViolationError):
            governed.invoke("I am jane@example.org")
        assert saved == [{"input": "hello"}]
        assert isinstance(kernel, LangChainKernel)
        assert [e["allowed"] for e in kernel._memory_audit_log] == [True, False]

    @pytest.mark.parametrize("mode", ["sync", "async", "stream", "astream"])
    def test_7_3_agents_in_agents_have_a_depth(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)

        def wrapped(agent: Any, agent_id: str) -> Any:
            with pytest.warns(DeprecationWarning, match="as_middleware"):
                return kernel.wrap(agent, agent_id)

        chain = wrapped(RunnableLambda(lambda x: x), "agent-0")
        for depth in range(1, 4):

            def call(x: Any, inner: Any = chain) -> Any:
                return inner.invoke(x)

            chain = wrapped(RunnableLambda(call), f"agent-{depth}")
            if depth == 2:
                run(chain, mode)
        with pytest.raises(PolicyViolationError, match="deep"):
            run(chain, mode)
        assert isinstance(kernel, LangChainKernel)
        assert kernel._delegation_chains[1]["chain"] == ["agent-2", "agent-1", "agent-0"]
        inner = client.get_session(kernel.contexts["agent-0"].session_id)
        assert inner.parent_session_id == kernel.contexts["agent-1"].session_id

    @pytest.mark.parametrize("mode", ["sync", "async", "stream", "astream", "batch", "abatch"])
    def test_all_ways_to_run_a_chain_are_checked(self, client: govnode.Client, mode: str) -> None:
        kernel = DRIVER.make(client)
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            governed = kernel.wrap(RunnableLambda(lambda x: AIMessage(content=str(x))))
        run(governed, mode)
        ctx = kernel.contexts["langchain"]
        assert (ctx.call_count, client.get_session(ctx.session_id).open_calls) == (1, ())
        kernel.signal_stop()
        with pytest.raises(PolicyViolationError):
            run(governed, mode)

    def test_a_wrapped_chain_has_a_timeout(self, client: govnode.Client) -> None:
        async def never(x: Any) -> Any:
            await asyncio.Event().wait()

        kernel = DRIVER.make(client, timeout_seconds=0.05)
        with pytest.warns(DeprecationWarning, match="as_middleware"):
            governed = kernel.wrap(RunnableLambda(never))
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(governed.ainvoke("x"))
        ctx = kernel.contexts["langchain"]
        assert client.get_session(ctx.session_id).open_calls == ()


def run(chain: Any, mode: str) -> Any:
    async def astream() -> list[Any]:
        return [piece async for piece in chain.astream("x")]

    ways: dict[str, Any] = {
        "sync": lambda: chain.invoke("x"),
        "async": lambda: asyncio.run(chain.ainvoke("x")),
        "stream": lambda: list(chain.stream("x")),
        "astream": lambda: asyncio.run(astream()),
        "batch": lambda: chain.batch(["x", "y"]),
        "abatch": lambda: asyncio.run(chain.abatch(["x", "y"])),
    }
    return ways[mode]()
