"""Google ADK: the tools and agents of a runner (adapter contract, section 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .integration.kernel import FrameworkKernel
from .integration.values import PolicyViolationError
from .policy import PolicyConfig


class GoogleADKKernel(FrameworkKernel):
    """Google ADK: the tools and agents of a runner (section 12)."""

    backend = "google_adk"
    framework = "google.adk"
    install = "govnode[google-adk]"
    replacement = "as_plugin"

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

    def as_plugin(self) -> Any:
        """Return the hook of the framework (section 12). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("GoogleADKKernel.as_plugin is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("GoogleADKKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
