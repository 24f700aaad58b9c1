"""Results with more in them than a text: rules judge all that a model would see, and it sees what they leave alone."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
from typing import Any

import pytest
from laws import RULES, Script

import govnode

ONCE: Script = [[("shell", {"command": "ls"})], "done"]


@pytest.fixture
def reviewed(client: govnode.Client) -> govnode.Session:
    """A session under a rule that takes keys, sk-..., out of what any tool returns."""
    client.put_policy(RULES)
    return client.session(agent="tester", policy="reviewed")


def module_of(framework: str, installed_as: str) -> Any:
    pytest.importorskip(installed_as)
    return importlib.import_module(f"test_{framework}")


def redacted(text: str) -> bool:
    return "sk-abc" not in text and "[REDACTED]" in text


@dataclasses.dataclass
class Page:
    """What an adapter could take for a message of its framework, by its name."""

    content: str
    key: str


def shell(command: str) -> Any:
    """Gives a page."""
    return Page("fine", "sk-abc")


def test_pydantic_ai_shows_the_content_of_a_tool_return_beside_its_value(reviewed: govnode.Session) -> None:
    driver = module_of("pydantic_ai", "pydantic_ai").DRIVER
    from pydantic_ai import ToolReturn

    def shell(command: str) -> Any:
        if command == "content":
            return ToolReturn("fine", content=["the", "sk-abc"], metadata={"kept": "sk-abc"})
        return ToolReturn({"key": "sk-abc"}, content="fine") if command == "value" else ToolReturn("fine")

    def run(command: str) -> tuple[str, Any]:
        agent = driver.agent(reviewed, [[("shell", {"command": command})], "done"], shell)
        sent = [p for m in agent.run_sync("go").all_messages() for p in m.parts if m.kind == "request"]
        return "\n".join(str(p.content) for p in sent), next(p for p in sent if p.part_kind == "tool-return").metadata

    shown, metadata = run("content")
    assert redacted(shown)
    assert metadata == {"kept": "sk-abc"}  # which no model sees
    assert redacted(run("value")[0])
    assert run("else")[0] == "go\nfine"


def test_pydantic_ai_shows_objects_as_json(reviewed: govnode.Session) -> None:
    driver = module_of("pydantic_ai", "pydantic_ai").DRIVER
    assert redacted(driver.run(reviewed, ONCE, shell, "sync").model_saw[0])


def test_semantic_kernel_shows_all_values(reviewed: govnode.Session) -> None:
    driver = module_of("semantic_kernel", "semantic_kernel").DRIVER

    def shell(command: str) -> dict[str, str]:
        return {"key": "sk-abc", "last": "fine"}

    assert redacted(driver.run(reviewed, ONCE, shell, "async").model_saw[0])


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("where", ["text", "resource", "structuredContent"])
def test_openai_agents_shows_what_is_structured_or_the_content(
    reviewed: govnode.Session, structured: bool, where: str
) -> None:
    module = module_of("openai_agents", "agents")
    mcp = pytest.importorskip("mcp.types")
    from agents import Agent, Runner

    text = mcp.TextContent(type="text", text="the sk-abc" if where == "text" else "fine")
    resource = mcp.TextResourceContents(uri="file:///a", text="sk-abc" if where == "resource" else "fine")
    result = mcp.CallToolResult(
        content=[text, mcp.EmbeddedResource(type="resource", resource=resource)],
        structuredContent={"key": "sk-abc" if where == "structuredContent" else "fine"},
    )
    server = module.server_of(result, use_structured_content=structured)
    agent = Agent(name="offline", model=module.scripted(ONCE), mcp_servers=[server])
    shown = module.DRIVER.seen(asyncio.run(Runner.run(module.govern_agent(agent, reviewed), "go"))).model_saw[0]
    assert "sk-abc" not in shown
    assert ("[REDACTED]" in shown) == (structured == (where == "structuredContent"))


def test_openai_agents_shows_objects_as_their_text(reviewed: govnode.Session) -> None:
    driver = module_of("openai_agents", "agents").DRIVER
    assert redacted(driver.run(reviewed, ONCE, shell, "sync").model_saw[0])


def test_openai_responses_show_objects_as_their_text(reviewed: govnode.Session) -> None:
    driver = module_of("openai_responses", "openai").TestOpenAIResponses.driver
    assert redacted(driver.run(reviewed, ONCE, shell, "sync").model_saw[0])


def test_langchain_shows_all_messages_and_blocks(reviewed: govnode.Session) -> None:
    module = module_of("langchain", "langchain.agents")
    from langchain_core.messages import ToolMessage
    from langgraph.types import Command

    def shell(command: str) -> Any:
        blocks: Any = [{"type": "text", "text": "fine"}, {"type": "text", "text": "sk-abc"}]
        if command == "blocks":
            return blocks
        return Command(update={"messages": [ToolMessage(blocks, tool_call_id="call-0-0")]})

    for command in ("blocks", "command"):
        script = [[("shell", {"command": command})], "done"]
        assert redacted(module.LangChain().run(reviewed, script, shell, "sync").model_saw[0])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_anthropic_shows_the_blocks_of_an_error_and_the_repr_of_others(reviewed: govnode.Session, mode: str) -> None:
    module = module_of("anthropic", "anthropic")
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "sk-abc"}}

    class Refused(Exception):
        def __str__(self) -> str:
            return "refused"

    def shell(command: str) -> Any:
        if command == "blocks":
            raise module.ToolError([{"type": "text", "text": "no"}, document])
        raise Refused("sk-abc")

    for command in ("blocks", "repr"):
        script = [[("shell", {"command": command})], "done"]
        shown = module.AnthropicRunner().run(reviewed, script, shell, mode).model_saw[0]
        assert redacted(shown)
    assert (reviewed.read().failures, reviewed.read().open_calls) == (2, ())


def test_autogen_shows_the_fields_of_a_result(reviewed: govnode.Session) -> None:
    module = module_of("autogen", "autogen_agentchat")
    from autogen_agentchat.agents import AssistantAgent
    from pydantic import create_model

    from govnode.adapters.autogen_guardrails import guard_tool
    from govnode.adapters.guardrail import GovnodeGuardrail

    found: Any = create_model("Found", content=(str, ...), key=(str, ...))

    def shell(command: str) -> Any:
        return found(content="fine", key="sk-abc")

    assert redacted(module.AutoGen().run(reviewed, ONCE, shell, "async").model_saw[0])
    tool = guard_tool(module.as_tool(shell), [GovnodeGuardrail(reviewed)])
    agent = AssistantAgent("worker", module.scripted(ONCE), tools=[tool])
    assert redacted(module.AutoGen.seen(asyncio.run(agent.run(task="go"))).model_saw[0])


def test_google_adk_shows_objects_as_json(reviewed: govnode.Session) -> None:
    driver = module_of("google_adk", "google.adk").ADK()
    assert redacted(driver.run(reviewed, ONCE, shell, "async").model_saw[0])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_agno_shows_files_beside_the_content(reviewed: govnode.Session, mode: str) -> None:
    module = module_of("agno", "agno")
    from agno.media import File
    from agno.tools.function import ToolResult

    def shell(command: str) -> Any:
        return ToolResult(content="fine", files=[File(content="sk-abc", mime_type="text/plain")])

    agent = module.DRIVER.agent(reviewed, ONCE, shell)
    output = agent.run("go") if mode == "sync" else asyncio.run(agent.arun("go"))
    assert redacted("\n".join(f"{m.content} {m.files}" for m in output.messages))


def test_agent_framework_shows_all_contents(reviewed: govnode.Session) -> None:
    module = module_of("agent_framework", "agent_framework")
    from agent_framework import Content
    from maf import ScriptedClient, go, governed

    def shell(command: str) -> Any:
        return [Content.from_text("fine"), Content.from_uri("https://a/sk-abc", media_type="image/png")]

    client = ScriptedClient(ONCE)
    middleware = [module.GovnodeMiddleware(reviewed)]
    asyncio.run(go(module.Agent(client=client, tools=[governed(shell)], middleware=middleware), "go", False))
    results = [c for m in client.read[-1] for c in m.contents if c.type == "function_result"]
    assert redacted(json.dumps([c.to_dict() for c in results], default=str))


def test_the_code_of_smolagents_gets_of_an_object_the_text_that_was_judged(reviewed: govnode.Session) -> None:
    module = module_of("smolagents", "smolagents")
    tool = module.as_tool(shell)
    tool.forward = shell
    code = "found = shell(command='ls')\nprint(isinstance(found, str), found)"
    agent = module.CodeAgent([tool], module.ScriptedModel([(code,), "done"], True), verbosity_level=-1)
    module.govern_agent(agent, reviewed).run("go")
    step = agent.memory.steps[1]
    observed = str(step.error or step.observations)
    assert redacted(observed)
    assert "True Page(content='fine'" in observed


def test_claude_code_is_left_no_number_of_what_is_suppressed() -> None:
    pytest.importorskip("claude_agent_sdk")
    from govnode.adapters.claude_agent import _said, _shaped

    response = {"stdout": "the pay", "lines": [5, 2.5], "more": {"raw": True, "none": None, "text": "x"}}
    left = {"stdout": "no", "lines": [0, 0.0], "more": {"raw": False, "none": None, "text": ""}}
    assert _shaped(response, "no") == left
    assert "sk-abc" in _said([{"type": "document", "text": "fine", "title": "sk-abc"}])
