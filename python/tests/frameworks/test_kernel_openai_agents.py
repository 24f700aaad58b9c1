"""OpenAIAgentsKernel (adapter contract 14) on the real framework and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conftest import eventually
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool, causes

import govnode
from govnode.integration import GovernancePolicy, PolicyViolationError, ToolCallRequest, ToolCallResult

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

from agents import Agent, InputGuardrail, OutputGuardrail, RunConfig, Runner, function_tool
from agents.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered
from test_openai_agents import OpenAIAgents, scripted

from govnode.integrations import OpenAIAgentsKernel


class OpenAIAgentsKernelDriver(KernelDriver):
    kernel = OpenAIAgentsKernel
    factory = "as_hooks"
    calls = 50
    denial_ends = True
    changes = False

    def agent(self, script: Script, tool: Any) -> Any:
        return Agent(name="offline", model=scripted(script), tools=[function_tool(tool)])

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        hooks = kernel.as_hooks("tester", session_id)
        return OpenAIAgents.seen(Runner.run_sync(self.agent(script, tool), "go", hooks=hooks))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        hooks = kernel.as_hooks("tester", session_id)
        return OpenAIAgents.seen(await Runner.run(self.agent(script, tool), "go", hooks=hooks))

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = self.agent(script, tool)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: Runner.run_sync(governed, "go")


class GovernDriver(OpenAIAgentsKernelDriver):
    """Runs agents that are governed whole, where everything can be changed and told."""

    denial_ends = False
    changes = True
    looks_at_outputs = False

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        governed = kernel.govern(self.agent(script, tool), "tester", session_id)
        return OpenAIAgents.seen(Runner.run_sync(governed, "go"))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        governed = kernel.govern(self.agent(script, tool), "tester", session_id)
        return OpenAIAgents.seen(await Runner.run(governed, "go"))


DRIVER = OpenAIAgentsKernelDriver()


class TestGovern(KernelLaws):
    driver = GovernDriver()


class TestOpenAIAgentsKernel(KernelLaws):
    driver = DRIVER

    def test_14_1_1_a_policy_is_made_of_the_arguments(self) -> None:
        kernel = OpenAIAgentsKernel(max_tool_calls=7, allowed_tools=["a"], blocked_patterns=["x"], timeout_seconds=9)
        assert kernel.policy == GovernancePolicy(
            max_tool_calls=7, allowed_tools=["a"], blocked_patterns=["x"], timeout_seconds=9
        )
        with pytest.raises(ValueError, match="max_tool_calls"):
            OpenAIAgentsKernel(GovernancePolicy(), max_tool_calls=7)
        with pytest.raises(ValueError, match="blocked_tools"):
            OpenAIAgentsKernel("careful", blocked_tools=["shell"])

    def test_14_1_1_blocked_tools_are_denied(self, client: govnode.Client) -> None:
        kernel = OpenAIAgentsKernel(client=client, blocked_tools=["shell"])
        tool = Tool("async")
        assert "blocked" in DRIVER.told(kernel, LS, tool.function, "async")
        assert tool.executed == []

    def test_14_2_1_what_an_agent_is_to_work_on_is_looked_at(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client, {"blocked_patterns": ["open sesame"]})
        hooks = kernel.as_hooks()
        with pytest.raises(Exception) as raised:  # noqa: PT011
            asyncio.run(Runner.run(DRIVER.agent(["done"], Tool().function), "Open Sesame", hooks=hooks))
        assert any(isinstance(c, PolicyViolationError) for c in causes(raised.value))

    def test_14_2_1_the_output_of_an_agent_is_taken_down(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        DRIVER.run(kernel, ["done"], Tool().function, "async")
        assert [e["event_type"] for e in kernel.get_audit_log()] == ["agent_end"]
        DRIVER.run(kernel, ["rm -rf /"], Tool().function, "async")
        assert not kernel.get_audit_log()[-1]["allowed"]

    @pytest.mark.parametrize("allowed", [0, 1, 2])
    def test_14_5_handoffs_are_counted_in_a_run(self, client: govnode.Client, allowed: int) -> None:
        kernel = OpenAIAgentsKernel(GovernancePolicy(name=f"handoffs-{allowed}"), client=client, max_handoffs=allowed)
        second = Agent(name="second", model=scripted([[("transfer_to_first", {})], "second"], "other"))
        first = Agent(
            name="first",
            model=scripted([[("transfer_to_second", {})], [("transfer_to_second", {})]]),
            handoffs=[second],
        )
        second.handoffs = [first]
        hooks = kernel.as_hooks("first")
        with pytest.raises(Exception) as raised:  # noqa: PT011
            asyncio.run(Runner.run(first, "go", hooks=hooks))
        found = [c for c in causes(raised.value) if isinstance(c, PolicyViolationError)]
        assert found, raised.value
        assert f"Max handoffs exceeded ({allowed})" in str(found[0])
        counters = client.get_session(kernel.contexts["first"].session_id).kind_counters
        assert counters is not None
        assert counters.handoffs == allowed

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_14_3_a_tool_guard_asks(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool(mode)
        guarded = kernel.create_tool_guard(tool.function)
        agent = Agent(
            name="offline",
            model=scripted([[("shell", {"command": "ls"})], [("shell", {"command": "rm -rf /"})], "done"]),
            tools=[function_tool(guarded)],
        )
        seen = OpenAIAgents.seen(asyncio.run(Runner.run(agent, "go")))
        assert tool.executed == ["ls"]
        assert "ran ls" in seen.model_saw[0]
        assert "rm -rf" in seen.model_saw[1]
        said = guarded("rm -rf")
        assert "rm -rf" in (said if mode == "sync" else asyncio.run(said))

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_14_3_a_tool_guard_runs_what_a_guardrail_left(self, client: govnode.Client, mode: str) -> None:
        """An argument that was taken out is not there, and one that the function does not take denies the call."""
        ran: list[tuple[str, bool]] = []

        def remove(path: str, force: bool = False) -> str:
            ran.append((path, force))
            return "removed"

        async def aremove(path: str, force: bool = False) -> str:
            return remove(path, force)

        class Gentler:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                left = {"path": request.arguments["path"]}
                return ToolCallResult(True, modified_arguments={**left, "dry": True} if left["path"] == "/" else left)

        kernel: Any = DRIVER.make(client, interceptors=[Gentler()])
        guarded = kernel.create_tool_guard(remove if mode == "sync" else aremove, tool_name="remove")

        def call(path: str) -> str:
            said = guarded(path, force=True)
            return str(said if mode == "sync" else asyncio.run(said))

        assert call("notes") == "removed"
        assert ran == [("notes", False)]
        assert "does not take: dry" in call("/")
        assert len(ran) == 1
        session_id = kernel.contexts["remove"].session_id
        eventually(lambda: client.get_session(session_id).open_calls == ())

    def test_14_4_a_guardrail_trips(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)

        def agent(answer: str) -> Any:
            return Agent(
                name="offline",
                model=scripted([answer]),
                input_guardrails=[InputGuardrail(kernel.create_guardrail())],
                output_guardrails=[OutputGuardrail(kernel.create_guardrail("output"))],
            )

        config = RunConfig(tracing_disabled=True)
        assert asyncio.run(Runner.run(agent("fine"), "go", run_config=config)).final_output == "fine"
        with pytest.raises(InputGuardrailTripwireTriggered):
            asyncio.run(Runner.run(agent("fine"), "rm -rf", run_config=config))
        with pytest.raises(OutputGuardrailTripwireTriggered):
            asyncio.run(Runner.run(agent("rm -rf"), "go", run_config=config))

    @pytest.mark.parametrize("mode", ["sync", "async", "stream"])
    def test_14_6_a_wrapped_runner_governs(self, client: govnode.Client, mode: str) -> None:
        kernel: Any = DRIVER.make(client)
        with pytest.warns(DeprecationWarning, match="wrap_runner.*as_hooks"):
            runner = kernel.wrap_runner(Runner)
        tool = Tool("async")
        script: Script = [[("shell", {"command": "rm -rf /"})], "done"]

        async def streamed() -> None:
            async for _ in runner.run_streamed(DRIVER.agent(script, tool.function), "go").stream_events():
                pass

        ways: dict[str, Any] = {
            "sync": lambda: runner.run_sync(DRIVER.agent(script, tool.function), "go"),
            "async": lambda: asyncio.run(runner.run(DRIVER.agent(script, tool.function), "go")),
            "stream": lambda: asyncio.run(streamed()),
        }
        with pytest.raises(Exception) as raised:  # noqa: PT011
            ways[mode]()
        assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == []
        assert kernel.unwrap(runner) is Runner
