"""Semantic Kernel: the functions that it invokes (adapter contract, section 13)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel
from .policy import GovernancePolicy


class SemanticKernelWrapper(FrameworkKernel):
    """Semantic Kernel: the functions that it invokes (section 13)."""

    backend = "semantic_kernel"
    framework = "semantic_kernel"
    install = "govnode[semantic-kernel]"
    replacement = "as_filter"

    def __init__(
        self,
        kernel: Any = None,
        policy: GovernancePolicy | None = None,
        timeout_seconds: float = 300.0,
        evaluator: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, evaluator, **options)
        self.kernel = kernel
        self.timeout_seconds = timeout_seconds

    def as_filter(self) -> Any:
        """Return the hook of the framework (section 13). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("SemanticKernelWrapper.as_filter is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("SemanticKernelWrapper.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
