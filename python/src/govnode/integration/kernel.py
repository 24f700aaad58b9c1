"""What the kernels of frameworks share: what is said where a framework is missing (adapter contract 6.3, 18, 20.4)."""

from __future__ import annotations

import importlib.util
import warnings

from .base import BaseIntegration


class FrameworkKernel(BaseIntegration):
    """An adapter of one framework."""

    #: The module of the framework, and what installs it.
    framework = ""
    install = ""
    #: What takes the place of ``wrap``, where that is deprecated.
    replacement = ""

    def _missing(self) -> str:
        """Return what to do about the missing framework, or nothing where it is there."""
        try:
            found = importlib.util.find_spec(self.framework) is not None
        except ModuleNotFoundError:  # of what it lies in
            found = False
        if found:
            return ""
        return f"{type(self).__name__} needs {self.framework}: pip install '{self.install}'"

    def _require(self) -> None:
        """Raise RuntimeError where the framework is missing, as a factory must."""
        if missing := self._missing():
            raise RuntimeError(missing)

    def _deprecate(self, method: str = "wrap") -> None:
        """Warn whoever called the caller, and raise ImportError where the framework is missing."""
        if self.replacement:
            warnings.warn(
                f"{type(self).__name__}.{method}() is deprecated. Use {self.replacement}().",
                DeprecationWarning,
                stacklevel=3,
            )
        if missing := self._missing():
            raise ImportError(missing)
