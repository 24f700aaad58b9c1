"""The table of what was proven on the frameworks, made by the run that proves it: a plugin of pytest, `-p proof`."""

from __future__ import annotations

import os
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

PACKAGES = {
    "TestLangChain": ("LangChain", "langchain", "langchain"),
    "TestOpenAIAgents": ("OpenAI Agents SDK", "openai-agents", "openai-agents"),
    "TestOpenAIResponses": ("OpenAI Responses", "openai", "openai"),
    "TestOpenAIAssistants": ("OpenAI Assistants", "openai", "openai"),
    "TestAgentFramework": ("Microsoft Agent Framework", "agent-framework-core", "agent-framework"),
    "TestPydanticAI": ("PydanticAI", "pydantic-ai-slim", "pydantic-ai"),
    "TestAutoGen": ("AutoGen agent", "autogen-agentchat", "autogen"),
    "TestRuntime": ("AutoGen handler", "autogen-core", "autogen"),
    "TestGuardrails": ("AutoGen guardrails", "autogen-core", "autogen"),
    "TestToolCallingAgent": ("smolagents, tool calls", "smolagents", "smolagents"),
    "TestCodeAgent": ("smolagents, code", "smolagents", "smolagents"),
    "TestAgno": ("Agno", "agno", "agno"),
    "TestToolCalls": ("CrewAI, tool calls", "crewai", "crewai"),
    "TestTextProtocol": ("CrewAI, text", "crewai", "crewai"),
    "TestAnthropic": ("Anthropic SDK", "anthropic", "anthropic"),
    "TestAgentHooks": ("agent-hooks", "agent-hooks-sdk", "agent-hooks"),
    "TestClaudeAgent": ("Claude Agent SDK", "claude-agent-sdk", "claude-agent"),
    "TestSemanticKernel": ("Semantic Kernel", "semantic-kernel", "semantic-kernel"),
    "TestChatCompletionAgent": ("Semantic Kernel agent", "semantic-kernel", "semantic-kernel"),
    "TestGoogleADK": ("Google ADK", "google-adk", "google-adk"),
}
POINTS = {
    "allow, deny with the reason": ("test_allow_and_deny", "test_raise_in_place_of_telling"),
    "a session of either client": ("test_async_client",),
    "changed arguments": ("test_changed_arguments",),
    "a limit across two processes": ("test_limit_holds_across_processes",),
    "an adapter that fails denies": ("test_adapter_error_denies",),
    "no service: denied": ("test_no_service",),
    "no service, `fail_open`: counted later": ("test_fail_open_leaves_a_trace",),
    "slot back after an error": ("test_slot_comes_back_after_an_error",),
    "slot back after cancellation": ("test_slot_comes_back_after_cancellation",),
    "slot back when a stream is closed": ("test_closed_stream_gives_the_slot_back",),
    "slot back after `kill -9`": ("test_killed_process_gives_its_slot_back",),
    "a cancelled thread keeps its slot": ("test_cancelled_thread_keeps_its_slot_until_it_ends",),
    "a lost answer is not counted twice": ("test_lost_answer_is_not_counted_twice",),
    "approval from another process": ("test_approval_from_another_process",),
    "KILL ends the run": ("test_kill_ends_the_run",),
}
PAGE = Path(__file__).parents[3] / "docs" / "python.md"
BEGIN, END = "<!-- what was proven: made by the run -->\n", "<!-- end -->\n"

_outcomes: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)


def pytest_collection_finish(session: pytest.Session) -> None:
    if not _is_worker(session.config):
        _find_all(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _find_all(node.config, ids)


def _is_worker(config: pytest.Config) -> bool:
    """Tell whether this is one of several processes that another has started, which hears of all their tests."""
    return hasattr(config, "workerinput")


def _find_all(config: pytest.Config, ids: list[str]) -> None:
    """Fail where a framework is missing: the environment of this run is to have them all."""
    seen = {parts[1] for i in ids if len(parts := i.split("::")) > 2}
    wanted = {name for name, of in PACKAGES.items() if of[1] in os.environ.get("GOVNODE_FRAMEWORKS", "").split()}
    if not config.option.keyword and (missing := wanted - seen):
        raise pytest.UsageError(f"there are no tests of these: {', '.join(sorted(missing))}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        parts = report.nodeid.split("::")
        if len(parts) == 3:
            name, _, mode = parts[2].partition("[")
            _outcomes[parts[1], name].append((mode.rstrip("]"), report.outcome))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("GOVNODE_PROOF") and not _is_worker(session.config):
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        known, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + table(known) + END + after)


def table(known: str) -> str:
    """Return the table with what this run has shown; the rows of other frameworks stay as they are."""
    before = [[c.strip() for c in line.split("|")[1:-1]] for line in known.splitlines()[2:]]
    rows = {cells[0]: cells for cells in before}
    for name, (title, package, _) in PACKAGES.items():
        if any(key[0] == name for key in _outcomes):
            shown = [_cell([o for t in tests for o in _outcomes[name, t]]) for tests in POINTS.values()]
            rows[title] = [title, _version(package), *shown]
    head = ["framework", "version", *POINTS]
    lines = [head, ["---"] * len(head), *[rows[title] for title, _, _ in PACKAGES.values() if title in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _cell(outcomes: list[tuple[str, str]]) -> str:
    if any(outcome == "failed" for _, outcome in outcomes):
        return "**no**"
    modes = list(dict.fromkeys(mode for mode, outcome in outcomes if outcome == "passed"))
    return ", ".join(m for m in modes if m) or ("yes" if modes else "-")
