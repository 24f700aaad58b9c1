"""The OpenAI Agents SDK: tools, guardrails and handoffs of a run (adapter contract, section 14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .integration.kernel import FrameworkKernel
from .integration.values import PolicyViolationError
from .policy import GovernancePolicy


class OpenAIAgentsKernel(FrameworkKernel):
    """The OpenAI Agents SDK: tools, guardrails and handoffs of a run (section 14)."""

    backend = "openai_agents"
    framework = "agents"
    install = "govnode[openai-agents]"
    replacement = "as_hooks"

    def __init__(
        self,
        policy: GovernancePolicy | None = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
        evaluator: Any = None,
        max_tool_calls: int = 50,
        max_handoffs: int = 5,
        timeout_seconds: int = 300,
        allowed_tools: list[str] | None = None,
        blocked_tools: list[str] | None = None,
        blocked_patterns: list[str] | None = None,
        require_human_approval: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            policy
            or GovernancePolicy(
                max_tool_calls=max_tool_calls,
                timeout_seconds=timeout_seconds,
                allowed_tools=list(allowed_tools or ()),
                blocked_patterns=list(blocked_patterns or ()),
                require_human_approval=require_human_approval,
            ),
            evaluator,
            **options,
        )
        self.on_violation = on_violation
        self.max_handoffs = max_handoffs
        self.blocked_tools = list(blocked_tools or ())
        self._violations: list[PolicyViolationError] = []

    def as_hooks(self) -> Any:
        """Return the hook of the framework (section 14). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("OpenAIAgentsKernel.as_hooks is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("OpenAIAgentsKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
