"""An adapter of no framework, for tests."""

from __future__ import annotations

import warnings
from typing import Any

from govnode.integration import BaseIntegration, FrameworkKernel, GovernanceEventType


class Wrapped:
    def __init__(self, agent: Any) -> None:
        self.agent = agent


class Kernel(BaseIntegration):
    backend = "tests"

    def wrap(self, agent: Any) -> Any:
        warnings.warn("Kernel.wrap() is deprecated. Use as_hook().", DeprecationWarning, stacklevel=2)
        return Wrapped(agent)

    def unwrap(self, governed_agent: Any) -> Any:
        return governed_agent.agent if isinstance(governed_agent, Wrapped) else governed_agent

    def heard(self) -> list[tuple[str, dict[str, Any]]]:
        """Return a list that all events are added to."""
        heard: list[tuple[str, dict[str, Any]]] = []
        for event in GovernanceEventType:
            self.on(event, lambda data, name=event.value: heard.append((name, data)))  # type: ignore[misc]
        return heard


class Missing(FrameworkKernel):
    """An adapter of a framework that there is not."""

    framework = "no_such_framework"
    install = "govnode[no-such-framework]"
    replacement = "as_hook"

    def as_hook(self) -> Any:
        self._require()

    def wrap(self, agent: Any) -> Any:
        self._deprecate()
        return agent

    def unwrap(self, governed_agent: Any) -> Any:
        return governed_agent


class Present(Missing):
    """One of a framework that is there."""

    framework = "json"
