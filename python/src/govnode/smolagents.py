"""smolagents: the steps and tools of its agents (adapter contract, section 16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .integration.kernel import FrameworkKernel
from .integration.values import PolicyViolationError
from .policy import PolicyConfig


class SmolagentsKernel(FrameworkKernel):
    """smolagents: the steps and tools of its agents (section 16)."""

    backend = "smolagents"
    framework = "smolagents"
    install = "govnode[smolagents]"
    replacement = "as_step_callback"

    def __init__(
        self,
        policy: PolicyConfig | None = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
        evaluator: Any = None,
        max_tool_calls: int = 50,
        max_agent_calls: int = 20,
        timeout_seconds: int = 300,
        allowed_tools: list[str] | None = None,
        blocked_tools: list[str] | None = None,
        blocked_patterns: list[str] | None = None,
        require_human_approval: bool = False,
        sensitive_tools: list[str] | None = None,
        max_budget: float | None = None,
        **options: Any,
    ) -> None:
        self.config = policy or PolicyConfig(
            max_tool_calls=max_tool_calls,
            max_agent_calls=max_agent_calls,
            timeout_seconds=timeout_seconds,
            allowed_tools=list(allowed_tools or ()),
            blocked_tools=list(blocked_tools or ()),
            blocked_patterns=list(blocked_patterns or ()),
            require_human_approval=require_human_approval,
            sensitive_tools=list(sensitive_tools or ()),
            max_budget=max_budget,
        )
        super().__init__(self.config.to_policy(), evaluator, **options)
        self.on_violation = on_violation
        self._violations: list[PolicyViolationError] = []
        self._pending_approvals: dict[str, dict[str, Any]] = {}
        self._approved_calls: dict[str, bool] = {}

    def as_step_callback(self) -> Any:
        """Return the hook of the framework (section 16). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("SmolagentsKernel.as_step_callback is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("SmolagentsKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
