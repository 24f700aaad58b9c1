"""All kernels of the adapter contract by their names, each imported at its first use (sections 2, 21.6)."""

from __future__ import annotations

import importlib
from typing import Any

from . import integration
from .integration import *  # noqa: F403

_KERNELS = {
    "AnthropicKernel": "anthropic",
    "AutoGenKernel": "autogen",
    "CrewAIKernel": "crewai",
    "GoogleADKKernel": "google_adk",
    "LangChainKernel": "langchain",
    "OpenAIAgentsKernel": "openai_agents",
    "OpenAIKernel": "openai",
    "PydanticAIKernel": "pydantic_ai",
    "SemanticKernelWrapper": "semantic_kernel",
    "SmolagentsKernel": "smolagents",
}

# What belongs to a kernel.
_BESIDE = {
    "ADKExecutionContext": "google_adk",
    "AnthropicContext": "anthropic",
    "AssistantContext": "openai",
    "RequestCancelledException": "anthropic",
    "SKContext": "semantic_kernel",
    "HumanApprovalRequired": "pydantic_ai",
}

__all__ = [*integration.__all__, *_KERNELS, *_BESIDE]


def __getattr__(name: str) -> Any:
    module = _KERNELS.get(name) or _BESIDE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f".kernels.{module}", __package__), name)
