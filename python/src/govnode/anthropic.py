"""Anthropic: the Messages API (adapter contract, section 11)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel
from .policy import GovernancePolicy


class AnthropicKernel(FrameworkKernel):
    """Anthropic: the Messages API (section 11)."""

    backend = "anthropic"
    framework = "anthropic"
    install = "govnode[anthropic]"
    replacement = "as_message_hook"

    def __init__(
        self,
        policy: GovernancePolicy | None = None,
        max_retries: int = 3,
        timeout_seconds: float = 300.0,
        evaluator: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.max_retries = max_retries
        self.timeout_seconds = timeout_seconds
        self._cancelled_requests: set[str] = set()

    def as_message_hook(self) -> Any:
        """Return the hook of the framework (section 11). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("AnthropicKernel.as_message_hook is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("AnthropicKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
