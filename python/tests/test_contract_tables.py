"""The tables of the adapter contract, of every kernel: they hold where no framework is installed, and need no node."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import pytest
from test_missing import missing

from govnode import integrations
from govnode.integration import (
    BaseIntegration,
    ExecutionContext,
    GovernanceEventType,
    GovernancePolicy,
    PolicyCheckResult,
    PolicyConfig,
    ToolCallRequest,
    ToolCallResult,
)

_LIMITS = {"timeout_seconds": 300, "allowed_tools": None, "blocked_tools": None, "blocked_patterns": None}
# Sections 3.2, 7.1.1, 10.1.1, 11.1.1, 13.1.1, 14.1.1, 15.1.1, 16.1.1.
CONSTRUCTORS: dict[str, dict[str, Any]] = {
    "BaseIntegration": {"policy": None, "evaluator": None},
    "CrewAIKernel": {"policy": None, "evaluator": None},
    "AutoGenKernel": {"policy": None, "evaluator": None},
    "LangChainKernel": {"policy": None, "timeout_seconds": 300.0, "deep_hooks_enabled": True, "evaluator": None},
    "OpenAIKernel": {"policy": None, "max_retries": 3, "timeout_seconds": 300.0},
    "AnthropicKernel": {"policy": None, "max_retries": 3, "timeout_seconds": 300.0, "evaluator": None},
    "SemanticKernelWrapper": {"kernel": None, "policy": None, "timeout_seconds": 300.0, "evaluator": None},
    "OpenAIAgentsKernel": {
        **{"policy": None, "on_violation": None, "evaluator": None, "max_tool_calls": 50, "max_handoffs": 5},
        **_LIMITS,
        "require_human_approval": False,
    },
    "PydanticAIKernel": {"policy": None, "approval_callback": None, "evaluator": None},
    "SmolagentsKernel": {
        **{"policy": None, "on_violation": None, "evaluator": None, "max_tool_calls": 50, "max_agent_calls": 20},
        **_LIMITS,
        **{"require_human_approval": False, "sensitive_tools": None, "max_budget": None},
    },
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_take_what_the_tables_say_in_their_order(name: str) -> None:
    parameters = list(inspect.signature(getattr(integrations, name)).parameters.values())
    table = CONSTRUCTORS[name]
    assert [(p.name, p.default) for p in parameters[: len(table)]] == list(table.items())


# Sections 6.2, 6.3 and 18.2: the factory, and the flag of the module.
FACTORIES = {
    "LangChainKernel": ("as_middleware", "_HAS_MIDDLEWARE"),
    "CrewAIKernel": ("as_hooks", "_HOOKS_AVAILABLE"),
    "AutoGenKernel": ("as_handler", "_HAS_HANDLER"),
    "OpenAIKernel": ("wrap", "_HAS_SDK"),
    "AnthropicKernel": ("as_message_hook", "_HAS_HOOK"),
    "GoogleADKKernel": ("as_plugin", "_HAS_PLUGIN"),
    "SemanticKernelWrapper": ("as_filter", "_HAS_FILTER"),
    "OpenAIAgentsKernel": ("as_hooks", "_HOOKS_AVAILABLE"),
    "PydanticAIKernel": ("as_capability", "_HAS_CAPABILITY"),
    "SmolagentsKernel": ("as_step_callback", "_HAS_CALLBACKS"),
}


def test_3_1_all_ten_kernels_are_integrations() -> None:
    assert set(FACTORIES) == set(integrations._KERNELS)
    assert all(issubclass(getattr(integrations, name), BaseIntegration) for name in FACTORIES)


@pytest.mark.parametrize("name", FACTORIES)
def test_6_2_factories_and_6_3_flags(name: str) -> None:
    kernel = getattr(integrations, name)
    factory, flag = FACTORIES[name]
    assert callable(getattr(kernel, factory))
    assert kernel.replacement == ("" if factory == "wrap" else factory)
    found = getattr(importlib.import_module(kernel.__module__), flag)
    assert found is not missing(kernel.framework)


@pytest.mark.parametrize("name", FACTORIES)
def test_3_4_from_cedar_is_inherited(name: str) -> None:
    kernel = getattr(integrations, name)
    assert "from_cedar" not in vars(kernel)
    made = kernel.from_cedar(policy_content="permit(principal, action, resource);", entities=[])
    assert isinstance(made, kernel)
    assert made._evaluator.files == {"policy.cedar": "permit(principal, action, resource);"}


@pytest.mark.parametrize("name", FACTORIES)
def test_3_2_what_a_kernel_begins_with(name: str) -> None:
    kernel = getattr(integrations, name)()
    assert isinstance(kernel.policy, GovernancePolicy)
    assert (kernel._evaluator, kernel.contexts, kernel._signal_handlers, kernel._event_listeners) == (None, {}, {}, {})
    # 17.4, 19.1, 19.2, 19.3.
    assert kernel._last_error is None
    assert kernel.audit_log == kernel.get_audit_log() == kernel.get_violations() == []
    stats = kernel.get_stats()
    assert (stats["total_tool_calls"], stats["total_violations"]) == (0, 0)
    assert stats["uptime_seconds"] >= 0.0


# Sections 10.2, 11.3, 12.5, 13.4.
CONTEXTS = {
    "AssistantContext": (
        "OpenAIKernel",
        ["assistant_id", "thread_ids", "run_ids", "function_calls", "prompt_tokens", "completion_tokens"],
    ),
    "AnthropicContext": (
        "AnthropicKernel",
        ["model", "message_ids", "tool_use_calls", "prompt_tokens", "completion_tokens"],
    ),
    "ADKExecutionContext": (
        "GoogleADKKernel",
        ["invocation_id", "agent_names", "prompt_tokens", "completion_tokens"],
    ),
    "SKContext": (
        "SemanticKernelWrapper",
        [
            "kernel_id", "plugins_loaded", "functions_invoked", "memory_operations", "prompt_tokens",
            "completion_tokens",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_have_the_fields_of_the_tables(name: str) -> None:
    kernel, added = CONTEXTS[name]
    made = getattr(integrations, kernel)().create_context("a")
    assert type(made) is getattr(integrations, name)
    assert isinstance(made, ExecutionContext)
    assert [f.name for f in dataclasses.fields(made) if f.name in added] == added


# Sections 7.1.2, 10.4, 11.4, 13.3, 15.4, 16.3, 16.4.
STATES: dict[str, dict[str, Any]] = {
    "LangChainKernel": {
        "_wrapped_agents": {}, "_tool_invocations": [], "_memory_audit_log": [], "_delegation_chains": [],
    },
    "OpenAIKernel": {"_cancelled_runs": set()},
    "AnthropicKernel": {"_cancelled_requests": set()},
    "SemanticKernelWrapper": {"_stopped": False, "_killed": False},
    "PydanticAIKernel": {"_audit_log": []},
    "SmolagentsKernel": {"_pending_approvals": {}, "_approved_calls": {}, "_original_forwards": {}},
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_what_kernels_keep(name: str) -> None:
    kernel = getattr(integrations, name)()
    for attribute, empty in STATES[name].items():
        found = getattr(kernel, attribute)
        assert (list(found) if isinstance(empty, list) else found) == empty, attribute


# Sections 4.1, 5.1, 5.2, 12.2 and the words of section 2.
VALUES: dict[type[Any], dict[str, Any]] = {
    GovernancePolicy: {
        "name": "default", "max_tokens": 4096, "max_tool_calls": 10, "allowed_tools": [], "blocked_patterns": [],
        "require_human_approval": False, "timeout_seconds": 300, "confidence_threshold": 0.8,
        "drift_threshold": 0.15, "log_all_calls": True, "checkpoint_frequency": 5, "max_concurrent": 10,
        "backpressure_threshold": 8, "version": "1.0.0",
    },
    PolicyConfig: {
        "max_tool_calls": 50, "max_agent_calls": 20, "timeout_seconds": 300, "allowed_tools": [],
        "blocked_tools": [], "blocked_patterns": [], "pii_detection": True, "log_all_calls": True,
        "require_human_approval": False, "sensitive_tools": [], "max_budget": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_values_have_the_defaults_of_the_tables(kind: type[Any]) -> None:
    assert dataclasses.asdict(kind()) == VALUES[kind]


def test_5_1_and_5_2_requests_and_results() -> None:
    request, result = ToolCallRequest("t", {"q": 1}), ToolCallResult(True)
    assert (request.call_id, request.agent_id, request.metadata) == ("", "", {})
    assert (result.reason, result.modified_arguments, result.audit_entry) == (None, None, None)
    assert PolicyCheckResult(False, "why", "category").to_legacy_tuple() == (False, "why")
    assert PolicyCheckResult(True).to_legacy_tuple() == (True, None)


def test_3_9_3_the_events() -> None:
    assert {e.name: e.value for e in GovernanceEventType} == {
        name.upper(): name
        for name in (
            "policy_check", "policy_violation", "tool_call_blocked", "checkpoint_created", "drift_detected",
        )
    }  # fmt: skip
