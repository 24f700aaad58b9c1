"""PydanticAI: the tools of its agents (adapter contract, section 15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .integration.kernel import FrameworkKernel
from .integration.values import PolicyViolationError
from .policy import GovernancePolicy


class PydanticAIKernel(FrameworkKernel):
    """PydanticAI: the tools of its agents (section 15)."""

    backend = "pydantic_ai"
    framework = "pydantic_ai"
    install = "govnode[pydantic-ai]"
    replacement = "as_capability"

    def __init__(
        self,
        policy: GovernancePolicy | None = None,
        approval_callback: Callable[[str, dict[str, Any]], bool] | None = None,
        evaluator: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.approval_callback = approval_callback
        self._audit_log: list[dict[str, Any]] = []

    def as_capability(self) -> Any:
        """Return the hook of the framework (section 15). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("PydanticAIKernel.as_capability is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("PydanticAIKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)


class HumanApprovalRequired(PolicyViolationError):
    """A person has to approve a call first (section 15.3)."""

    def __init__(self, tool_name: str, arguments: dict[str, Any]) -> None:
        super().__init__(f"Tool '{tool_name}' requires human approval per governance policy")
        self.tool_name = tool_name
        self.arguments = arguments
