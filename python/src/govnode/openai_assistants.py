"""OpenAI Assistants: runs and the tools that they call (adapter contract, section 10)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel
from .policy import GovernancePolicy


class OpenAIKernel(FrameworkKernel):
    """OpenAI Assistants: runs and the tools that they call (section 10)."""

    backend = "openai_assistants"
    framework = "openai"
    install = "govnode[openai]"

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
        self._cancelled_runs: set[str] = set()

    def wrap(self, agent: Any, client: Any) -> Any:  # type: ignore[override]
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("OpenAIKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)

    def is_cancelled(self, run_id: str) -> bool:
        """Tell whether a run was cancelled (section 10.4)."""
        return run_id in self._cancelled_runs
