"""What the pages of the frameworks print is run as it stands, with a scripted model."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import govnode
from govnode import integrations, testing

PAGES = Path(__file__).parents[3] / "docs" / "python"
SCRIPT: list[Any] = [[("shell", {"command": "ls"})], [("shell", {"command": "rm -rf /"})], "done"]
# The page, the package, and what makes a model of a script: a model, or its name and what its client finds it by.
FRAMEWORKS = [
    ("langchain", "langchain.agents", "test_langchain", lambda m: m.ScriptedModel(script=SCRIPT)),
    ("openai-agents", "agents", "test_openai_agents", lambda m: m.scripted(SCRIPT)),
    ("agent-framework", "agent_framework", "maf", lambda m: m.ScriptedClient(SCRIPT)),
    ("openai-responses", "openai", "test_openai_responses", lambda m: ("scripted", m.Provider(SCRIPT).environment)),
    ("openai-assistants", "openai", "test_openai_assistants", lambda m: ("scripted", m.Provider(SCRIPT).environment)),
    ("pydantic-ai", "pydantic_ai", "test_pydantic_ai", lambda m: m.scripted(SCRIPT)),
    ("autogen", "autogen_agentchat", "test_autogen", lambda m: m.scripted(SCRIPT)),
    ("smolagents", "smolagents", "test_smolagents", lambda m: m.ScriptedModel(SCRIPT, False)),
    ("agno", "agno", "test_agno", lambda m: m.ScriptedModel(SCRIPT)),
    ("crewai", "crewai", "test_crewai", lambda m: m.ScriptedLLM(model="scripted", script=SCRIPT)),
    ("anthropic", "anthropic", "test_anthropic", lambda m: m.served(SCRIPT)),
    ("agent-hooks", "agent_hooks", "maf", lambda m: m.ScriptedClient(SCRIPT)),
    ("claude-agent", "claude_agent_sdk", "test_claude_agent", lambda m: m.scripted_model(SCRIPT)),
    ("semantic-kernel", "semantic_kernel", "test_semantic_kernel", lambda m: m.ScriptedService(SCRIPT)),
    ("google-adk", "google.adk", "test_google_adk", lambda m: m.scripted(SCRIPT)),
]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("page", "package", "module", "model"), FRAMEWORKS, ids=[f[0] for f in FRAMEWORKS])
def test_page(
    page: str, package: str, module: str, model: Any, address: testing.Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    blocks = blocks_of(page)
    assert len(blocks) == (3 if page == "agent-framework" else 1)
    monkeypatch.setenv("GOVNODE_ADDRESSES", address)
    made = model(importlib.import_module(module))
    made, environment = made if isinstance(made, tuple) else (made, {})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {"model": made, "__name__": "page"}
    exec(compile(blocks[0], f"{page}.md", "exec", dont_inherit=True), names)
    session: govnode.Session = names["session"]
    info = session.read()
    assert (info.executions, info.attempts, info.open_calls) == (1, 2, ())
    assert "done" in str(names["result"])
    names["client"].close()


def test_further_blocks_of_agent_framework(address: testing.Address, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("agent_framework", reason="agent_framework is not installed")
    maf = importlib.import_module("maf")
    monkeypatch.setenv("GOVNODE_ADDRESSES", address)
    names: dict[str, Any] = {"model": maf.ScriptedClient(SCRIPT), "__name__": "page"}
    first, people, state = (compile(b, "page", "exec", dont_inherit=True) for b in blocks_of("agent-framework"))
    exec(first, names)
    names["model"] = maf.ScriptedClient([SCRIPT[0], "done"])
    exec(people, names)
    assert names["result"].text == "done"
    (used,) = names["client"].list_approvals(session_id=names["asked"].id)
    assert (used.state, used.ballots[0].approver) == ("USED", "anna")
    for said in ("one", "two"):
        names["model"] = maf.ScriptedClient([said])
        exec(state, names)
    assert "one" in names["model"].texts()
    names["client"].close()


def test_page_of_the_kernels(address: testing.Address, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain.agents", reason="LangChain is not installed")
    page = PAGES / "kernels.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 1
    monkeypatch.setenv("GOVNODE_ADDRESSES", address)
    model = importlib.import_module("test_langchain").ScriptedModel(script=SCRIPT)
    names: dict[str, Any] = {"model": model, "__name__": "page"}
    exec(compile(blocks[0], page.name, "exec", dont_inherit=True), names)
    kernel = names["kernel"]
    assert kernel.contexts["anna"].call_count == 1
    assert [v.category for v in kernel.get_violations()] == ["blocked_pattern_input"]
    names["client"].close()


def test_every_kernel_is_on_the_page() -> None:
    page = (PAGES / "kernels.md").read_text()
    assert all(f"`{name}`" in page for name in integrations._KERNELS)


def test_every_page_is_run() -> None:
    assert sorted(p.stem for p in PAGES.glob("*.md")) == sorted(["edictum", "kernels", *(f[0] for f in FRAMEWORKS)])
