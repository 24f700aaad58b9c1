"""PydanticAIKernel (adapter contract 15) on the real framework and a real node."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest
from kernel_laws import LS, KernelDriver, KernelLaws
from laws import Script, Seen, Tool

import govnode
from govnode.integration import GovernancePolicy, PolicyConfig, PolicyViolationError

pytest.importorskip("pydantic_ai", reason="PydanticAI is not installed")

from pydantic_ai import Agent
from test_pydantic_ai import PydanticAI, scripted

from govnode.integrations import HumanApprovalRequired, PydanticAIKernel


class PydanticAIKernelDriver(KernelDriver):
    kernel = PydanticAIKernel
    factory = "as_capability"

    def agent(self, script: Script, tool: Any, **options: Any) -> Any:
        agent: Any = Agent(scripted(script), **options)
        agent.tool_plain(tool)
        return agent

    def go(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        capabilities = [kernel.as_capability("tester", session_id)]
        return PydanticAI.seen(self.agent(script, tool, capabilities=capabilities).run_sync("go"))

    async def ago(self, kernel: Any, script: Script, tool: Any, session_id: str | None) -> Seen:
        capabilities = [kernel.as_capability("tester", session_id)]
        return PydanticAI.seen(await self.agent(script, tool, capabilities=capabilities).run("go"))

    def wrapped(self, kernel: Any, script: Script, tool: Any) -> tuple[Any, Any, Any]:
        agent = self.agent(script, tool)
        governed = kernel.wrap(agent)
        return agent, governed, lambda: governed.run_sync("go")


DRIVER = PydanticAIKernelDriver()


class TestPydanticAIKernel(KernelLaws):
    driver = DRIVER

    @KernelLaws.every_mode
    @pytest.mark.parametrize("yes", [True, False])
    def test_approval_callback_decides(self, client: govnode.Client, mode: str, yes: bool) -> None:
        asked: list[tuple[str, dict[str, Any]]] = []

        def callback(tool_name: str, arguments: dict[str, Any]) -> bool:
            asked.append((tool_name, arguments))
            return yes

        tool = Tool(mode)
        kernel = PydanticAIKernel(
            GovernancePolicy(name="asks-callback", require_human_approval=True),
            callback,
            client=client,
            approver=client,
        )
        seen = DRIVER.run(kernel, LS, tool.function, mode)
        assert asked == [("shell", {"command": "ls"})]
        assert tool.executed == (["ls"] if yes else [])
        assert ("ran ls" in seen.model_saw[0]) == yes

    @pytest.mark.parametrize("mode", ["sync", "async"])
    @pytest.mark.parametrize("sensitive", [True, False])
    def test_15_3_people_have_to_say_yes(self, client: govnode.Client, mode: str, sensitive: bool) -> None:
        policy: Any = PolicyConfig(sensitive_tools=["shell"]) if sensitive else None
        policy = policy or GovernancePolicy(name="asks-nobody", require_human_approval=True)
        tool = Tool(mode)
        kernel = PydanticAIKernel(policy, client=client)
        with pytest.raises(HumanApprovalRequired, match="shell") as raised:
            DRIVER.run(kernel, LS, tool.function, mode)
        error: Any = raised.value
        assert issubclass(HumanApprovalRequired, PolicyViolationError)
        assert error.arguments == {"command": "ls"}
        assert tool.executed == []
        assert bool(error.approval_id) == sensitive

    def test_15_4_audit_log(self, client: govnode.Client) -> None:
        kernel = DRIVER.make(client)
        DRIVER.run(kernel, LS, Tool().function, "sync")
        entry = kernel._audit_log[-1]
        assert {"timestamp", "event_type", "tool_name", "allowed", "reason", "arguments", "agent_id"} <= set(entry)
        assert datetime.fromisoformat(entry["timestamp"]).utcoffset() is not None
        assert (entry["tool_name"], entry["allowed"], entry["reason"]) == ("shell", True, "")
        silent = DRIVER.make(client, {"log_all_calls": False})
        DRIVER.run(silent, LS, Tool().function, "sync")
        assert silent.get_audit_log() == []

    def test_15_5_all_ways_to_run_a_wrapped_agent(self, client: govnode.Client) -> None:
        kernel: Any = DRIVER.make(client)
        tool = Tool("async")

        async def stream(governed: Any) -> None:
            async with governed.run_stream("go") as result:
                assert await result.get_output() == "done"

        script: Script = [[("shell", {"command": "rm -rf /"})], "done"]
        for way in (lambda g: asyncio.run(g.run("go")), lambda g: asyncio.run(stream(g)), lambda g: g.run_sync("go")):
            with pytest.warns(DeprecationWarning, match="as_capability"):
                governed = kernel.wrap(DRIVER.agent(LS, tool.function))
            way(governed)
            with pytest.warns(DeprecationWarning, match="as_capability"):
                governed = kernel.wrap(DRIVER.agent(script, tool.function))
            with pytest.raises(govnode.errors.PolicyViolationError, match="rm -rf"):
                way(governed)
        assert tool.executed == ["ls"] * 3
