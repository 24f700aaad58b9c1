"""SmolagentsKernel (adapter contract 16) on the real framework and a real node."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import eventually
from kernel_laws import BOTH, LS, KernelDriver, KernelLaws
from laws import RULES, Script, Seen, Tool, causes

import govnode
from govnode.integration import (
    GovernancePolicy,
    PolicyConfig,
    PolicyViolationError,
    ToolCallRequest,
    ToolCallResult,
)

pytest.importorskip("smolagents", reason="smolagents is not installed")

from smolagents import CodeAgent, LogLevel, ToolCallingAgent
from test_smolagents import ScriptedModel, Smolagents, as_tool

from govnode.integrations import SmolagentsKernel


class SmolagentsKernelDriver(KernelDriver):
    kernel = SmolagentsKernel
    factory = "as_step_callback"
    calls = 50
    modes = ("sync",)
    code = False

    def agent(self, script: Script, tool: Any, **options: Any) -> Any:
        kind = CodeAgent if self.code else ToolCallingAgent
        model = ScriptedModel(script, self.code)
        return kind(tools=[as_tool(tool)], model=model, verbosity_level=LogLevel.OFF, **options)

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        agent = kernel.govern(self.agent(script, tool), "tester", session_id)
        return Smolagents.seen(agent, agent.run("go"))

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = self.agent(script, tool)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: governed.run("go")


class CodeDriver(SmolagentsKernelDriver):
    code = True


DRIVER = SmolagentsKernelDriver()


class Both(KernelLaws):
    driver: SmolagentsKernelDriver

    def test_wrapped_agent_that_is_denied_raises(self, client: govnode.Client) -> None:
        """smolagents tells the model what a tool raises."""
        kernel = self.driver.make(client)
        tool = Tool()
        with pytest.warns(DeprecationWarning, match="as_step_callback"):
            agent, _, run = self.driver.wrapped(kernel, LS, tool.function)
        kernel.signal_stop()
        run()
        assert "stopped" in Smolagents.seen(agent, "").model_saw[0]
        assert tool.executed == []

    def test_16_2_a_callback_alone_governs_from_the_second_step_on(self, client: govnode.Client) -> None:
        kernel: Any = self.driver.make(client)
        tool = Tool()
        agent = self.driver.agent(BOTH, tool.function, step_callbacks=[kernel.as_step_callback("tester")])
        seen = Smolagents.seen(agent, agent.run("go"))
        assert tool.executed == ["ls"]
        assert "rm -rf" in seen.model_saw[1]
        assert kernel.contexts["tester"].call_count == (0 if self.driver.code else 1)

    def test_16_2_what_the_first_step_did_is_judged_afterwards(self, client: govnode.Client) -> None:
        kernel: Any = self.driver.make(client)
        tool = Tool()
        script: Script = [[("shell", {"command": "rm -rf /"})], [("shell", {"command": "ls"})], "done"]
        agent = self.driver.agent(script, tool.function, step_callbacks=[kernel.as_step_callback()])
        with pytest.raises(Exception) as raised:  # noqa: PT011
            agent.run("go")
        assert any(isinstance(c, govnode.errors.PolicyViolationError) for c in causes(raised.value))
        assert tool.executed == ["rm -rf /"]

    def test_16_2_what_would_have_been_another_call_ends_the_run(self, client: govnode.Client) -> None:
        """It has run by then with other arguments than are allowed, or rules did not see what it gave."""

        class Longer:
            def intercept(self, request: ToolCallRequest) -> ToolCallResult:
                return ToolCallResult(True, modified_arguments={"command": "ls -l"})

        if self.driver.code:
            pytest.skip("what tools the code of a step has called is not known")
        client.put_policy(RULES)
        kernel: Any
        for kernel, why in (
            (self.driver.make(client, interceptors=[Longer()]), "shell: a guardrail has changed the arguments"),
            (SmolagentsKernel("reviewed", client=client), "shell: rules look at what it returns"),
        ):
            callback = kernel.as_step_callback("tester")
            with pytest.raises(Exception) as raised:  # noqa: PT011
                self.driver.agent(LS, Tool().function, step_callbacks=[callback]).run("go")
            assert any(why in str(c) for c in causes(raised.value))
            session_id = kernel.contexts["tester"].session_id
            eventually(lambda id=session_id: client.get_session(id).open_calls == ())  # type: ignore[misc]

    def test_16_4_unwrap_restores_the_tools(self, client: govnode.Client) -> None:
        kernel = self.driver.make(client)
        agent = self.driver.agent(LS, Tool().function)
        with pytest.warns(DeprecationWarning, match="as_step_callback"):
            kernel.wrap(agent)
        assert "forward" in vars(agent.tools["shell"])
        assert kernel.unwrap(agent) is agent
        assert "forward" not in vars(agent.tools["shell"])


class TestSmolagentsKernel(Both):
    driver = DRIVER

    def test_16_1_1_a_config_is_made_of_the_arguments(self) -> None:
        kernel = SmolagentsKernel(max_agent_calls=3, sensitive_tools=["mail"], allowed_tools=["mail", "shell"])
        assert kernel.config == PolicyConfig(
            max_agent_calls=3, sensitive_tools=["mail"], allowed_tools=["mail", "shell"]
        )
        assert kernel.policy.allowed_tools == ["mail", "shell"]
        assert kernel.policy.max_tool_calls == 50
        with pytest.raises(ValueError, match="max_agent_calls"):
            SmolagentsKernel(PolicyConfig(), max_agent_calls=3)
        with pytest.raises(ValueError, match="max_budget"):
            SmolagentsKernel(max_budget=1.0)

    @pytest.mark.parametrize("yes", [True, False])
    def test_16_3_the_queue_of_approvals(self, client: govnode.Client, yes: bool) -> None:
        kernel = SmolagentsKernel(sensitive_tools=["shell"], client=client, approver=client)
        tool = Tool()
        script: Script = [[("shell", {"command": "ls"})], [("shell", {"command": "ls"})], "done"]
        asked: list[str] = []

        def decide(step: Any, agent: Any = None) -> None:
            for id, request in kernel.get_pending_approvals().items():
                assert kernel._pending_approvals[id] == request
                assert (request["tool_name"], request["arguments"]) == ("shell", '{"command":"ls"}')
                asked.append(id)
                assert kernel.approve(id) if yes else kernel.deny(id)

        agent = kernel.govern(DRIVER.agent(script, tool.function, step_callbacks=[decide]))
        agent.run("go")
        assert tool.executed == (["ls"] if yes else [])
        assert kernel._approved_calls == dict.fromkeys(asked, yes)
        assert kernel.get_pending_approvals() == {}

    def test_16_1_1_agents_are_counted(self, client: govnode.Client) -> None:
        def agent(script: Script, **options: Any) -> Any:
            return DRIVER.agent(script, Tool().function, **options)

        kernel = SmolagentsKernel(max_agent_calls=1, client=client)
        inner = agent(["inside", "inside"], name="helper", description="helps")
        calls: Script = [[("helper", {"task": "one"})], [("helper", {"task": "two"})], "done"]
        outer = kernel.govern(agent(calls, managed_agents=[inner]))
        seen = Smolagents.seen(outer, outer.run("go"))
        assert "inside" in seen.model_saw[0]
        assert "Max agent calls exceeded (1)" in seen.model_saw[1]

    def test_16_5_tools_of_older_agents(self) -> None:
        class Box:
            tools = {"a": 1}  # noqa: RUF012

        class Old:
            toolbox: Any = Box()

        class Plain:
            toolbox = {"b": 2}  # noqa: RUF012

        assert SmolagentsKernel._extract_tools(Old()) == {"a": 1}
        assert SmolagentsKernel._extract_tools(Plain()) == {"b": 2}
        assert SmolagentsKernel._extract_tools(object()) == {}

    def test_a_policy_of_the_other_kind(self) -> None:
        assert SmolagentsKernel(GovernancePolicy(max_tool_calls=3)).policy.max_tool_calls == 3
        assert issubclass(PolicyViolationError, Exception)


class TestCodeAgentKernel(Both):
    driver = CodeDriver()
