"""Arguments that nobody can judge: no tool runs with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from laws import causes

import govnode
from govnode.integration import PolicyViolationError

pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")

import test_openai_agents as module
from agents import Agent, FunctionTool, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from govnode.adapters.openai_agents import govern_agent
from govnode.integrations import OpenAIAgentsKernel


@pytest.mark.parametrize("arguments", ["[1]", '"ls"', "null", "{"])
def test_openai_agents_do_not_run_a_tool_whose_arguments_are_no_object(
    client: govnode.Client, session: govnode.Session, arguments: str
) -> None:
    ran = []

    async def takes_anything(ctx: Any, text: str) -> str:
        ran.append(text)
        return "ran"

    def agent() -> Any:
        model = ScriptedModel([[function_call("shell", arguments, call_id="c")], [assistant_message("done")]])
        tool = FunctionTool("shell", "a shell", {"type": "object"}, takes_anything, strict_json_schema=False)
        return Agent(name="offline", model=model, tools=[tool])

    seen = module.DRIVER.seen(asyncio.run(Runner.run(govern_agent(agent(), session), "go")))
    assert "the arguments of shell are no JSON object" in seen.model_saw[0]
    for governed, hooks in (
        (govern_agent(agent(), session, on_denied="raise"), None),
        (agent(), OpenAIAgentsKernel(client=client).as_hooks()),
    ):
        with pytest.raises(Exception, match="the arguments of shell are no JSON object") as raised:
            Runner.run_sync(governed, "go", hooks=hooks)
        assert any(isinstance(e, PolicyViolationError) for e in causes(raised.value))
    assert ran == []


@pytest.mark.parametrize("arguments", ["[1]", "{"])
def test_openai_agents_do_not_hand_off_with_arguments_that_are_no_object(
    session: govnode.Session, arguments: str
) -> None:
    model = ScriptedModel([[function_call("transfer_to_second", arguments, call_id="c")]])
    second = Agent(name="second", model=module.scripted(["done"]))
    first = Agent(name="first", model=model, handoffs=[second])
    with pytest.raises(Exception, match="the arguments of transfer_to_second are no JSON object") as raised:
        Runner.run_sync(govern_agent(first, session), "go")
    assert any(isinstance(e, PolicyViolationError) for e in causes(raised.value))
