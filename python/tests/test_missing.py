"""Without a framework its adapter says what to install, and its kernel can be imported (adapter contract 6.3, 20.4)."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import govnode.adapters
from govnode import integrations

# What each adapter needs; the rest is what they share.
ADAPTERS = {
    "agent_framework": "agent_framework",
    "agent_hooks": "agent_hooks",
    "agno": "agno",
    "anthropic": "anthropic",
    "autogen": "autogen_core",
    "autogen_guardrails": "autogen_core",
    "claude_agent": "claude_agent_sdk",
    "crewai": "crewai",
    "google_adk": "google.adk",
    "langchain": "langchain",
    "openai_agents": "agents",
    "openai_assistants": "openai",
    "openai_responses": "openai",
    "pydantic_ai": "pydantic_ai",
    "semantic_kernel": "semantic_kernel",
    "smolagents": "smolagents",
}
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def missing(framework: str) -> bool:
    try:
        return importlib.util.find_spec(framework) is None
    except ModuleNotFoundError:
        return True


def test_all_adapters_are_here() -> None:
    found = {m.name for m in pkgutil.iter_modules(govnode.adapters.__path__) if not m.name.startswith("_")}
    assert found - {"guardrail"} == set(ADAPTERS)


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapter_says_what_to_install(name: str) -> None:
    if not missing(ADAPTERS[name]):
        pytest.skip(f"{ADAPTERS[name]} is installed")
    with pytest.raises(ImportError, match="pip install 'govnode") as raised:
        importlib.import_module(f"govnode.adapters.{name}")
    extra = re.search(r"govnode\[(.*)\]", str(raised.value))
    assert extra is not None
    assert f"\n{extra[1]} = [" in PYPROJECT.read_text()


@pytest.mark.parametrize("name", integrations._KERNELS)
def test_kernel_can_be_imported(name: str) -> None:
    kernel: Any = getattr(integrations, name)()  # without a node, too
    if not missing(kernel.framework):
        pytest.skip(f"{kernel.framework} is installed")
    factory = getattr(kernel, kernel.replacement or "wrap")
    if kernel.replacement:
        with pytest.raises(RuntimeError, match="pip install 'govnode"):
            factory()
    extra = re.search(r"govnode\[(.*)\]", kernel.install)
    assert extra is not None
    assert f"\n{extra[1]} = [" in PYPROJECT.read_text()


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="NoKernel"):
        _ = integrations.NoKernel
