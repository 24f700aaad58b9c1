"""CrewAI: crews and their agents (adapter contract, section 8)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel


class CrewAIKernel(FrameworkKernel):
    """CrewAI: crews and their agents (section 8)."""

    backend = "crewai"
    framework = "crewai"
    install = "govnode[crewai]"
    replacement = "as_hooks"

    def as_hooks(self) -> Any:
        """Return the hook of the framework (section 8). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("CrewAIKernel.as_hooks is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("CrewAIKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
