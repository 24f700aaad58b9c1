"""Every adapter by its name in the adapter contract, loaded when it is first asked for (section 21.6)."""

from __future__ import annotations

import importlib
from typing import Any

from . import integration
from .integration import *  # noqa: F403

_KERNELS = {
    "LangChainKernel": "langchain",
    "CrewAIKernel": "crewai",
    "AutoGenKernel": "autogen",
    "OpenAIKernel": "openai_assistants",
    "AnthropicKernel": "anthropic",
    "GoogleADKKernel": "google_adk",
    "SemanticKernelWrapper": "semantic_kernel",
    "OpenAIAgentsKernel": "openai_agents",
    "PydanticAIKernel": "pydantic_ai",
    "SmolagentsKernel": "smolagents",
}

__all__ = [*integration.__all__, *_KERNELS]


def __getattr__(name: str) -> Any:
    module = _KERNELS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
