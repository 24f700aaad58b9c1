"""LangChain: agents and their tools, models and memory (adapter contract, section 7)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel
from .policy import GovernancePolicy


class LangChainKernel(FrameworkKernel):
    """LangChain: agents and their tools, models and memory (section 7)."""

    backend = "langchain"
    framework = "langchain"
    install = "govnode[langchain]"
    replacement = "as_middleware"

    def __init__(
        self,
        policy: GovernancePolicy | None = None,
        timeout_seconds: float = 300.0,
        deep_hooks_enabled: bool = True,
        evaluator: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.timeout_seconds = timeout_seconds
        self.deep_hooks_enabled = deep_hooks_enabled
        self._wrapped_agents: dict[int, Any] = {}
        self._tool_invocations: list[dict[str, Any]] = []
        self._memory_audit_log: list[dict[str, Any]] = []
        self._delegation_chains: list[dict[str, Any]] = []

    def as_middleware(self) -> Any:
        """Return the hook of the framework (section 7). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("LangChainKernel.as_middleware is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("LangChainKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
