"""AutoGen: the messages of its runtime (adapter contract, section 9)."""

from __future__ import annotations

from typing import Any

from .integration.kernel import FrameworkKernel


class AutoGenKernel(FrameworkKernel):
    """AutoGen: the messages of its runtime (section 9)."""

    backend = "autogen"
    framework = "autogen_core"
    install = "govnode[autogen]"
    replacement = "as_handler"

    def as_handler(self) -> Any:
        """Return the hook of the framework (section 9). Raises RuntimeError where the framework is missing."""
        self._require()
        raise NotImplementedError("AutoGenKernel.as_handler is not built yet")

    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed. Raises ImportError where the framework is missing."""
        self._deprecate()
        raise NotImplementedError("AutoGenKernel.wrap is not built yet")

    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""
        return getattr(governed_agent, "_original", governed_agent)
