"""What an adapter keeps of what it decided: bounded lists without anything private (adapter contract 19, 21.2)."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from .values import PolicyViolationError, ToolCallRequest, logger

MOST = 10_000  # entries of a list
_CLIP = 1024  # characters of a text
_DEPTH = 8
_HIDDEN = "[REDACTED]"

#: Of social security numbers, addresses of mail and credentials (section 7.4).
PII_PATTERNS = (
    re.compile(r"\b\d{3}-\d{2}-\d{4}\b"),
    re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}"),
    re.compile(r"(?:password|passwd|secret|token|api[_-]?key)[\"']?\s*[:=]\s*\S", re.IGNORECASE),
)
_SECRET_NAME = re.compile(r"password|passwd|secret|token|api[_-]?key|authorization|credential", re.IGNORECASE)


def redacted(value: Any, _depth: int = 0) -> Any:
    """Return a value as it may be kept: texts that hold something private, and what has the name of a secret, are not.

    What is not plain becomes a text, and long texts are cut.
    """
    if value is None or isinstance(value, (bool, int, float)):
        text = str(value)  # the digits of a number may be those of something private
        return _HIDDEN if any(p.search(text) for p in PII_PATTERNS) else value
    if _depth >= _DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {
            str(redacted(str(k))): _HIDDEN if _SECRET_NAME.search(str(k)) else redacted(v, _depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redacted(v, _depth + 1) for v in value]
    text = value if isinstance(value, str) else str(value)
    if any(p.search(text) for p in PII_PATTERNS):
        return _HIDDEN
    return text if len(text) <= _CLIP else text[:_CLIP] + "..."


class Records:
    """The audit log, the violations and the numbers of an adapter."""

    def __init__(self, on_violation: Callable[[PolicyViolationError], Any] | None) -> None:
        self.on_violation = on_violation
        self._started = time.monotonic()
        self._last_error: str | None = None
        self._audit_log: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._violations: deque[PolicyViolationError] = deque(maxlen=MOST)
        self._counted = threading.Lock()
        self._total_tool_calls = self._total_violations = 0

    @property
    def audit_log(self) -> list[dict[str, Any]]:
        """The latest entries, oldest first."""
        return list(self._audit_log)

    def get_audit_log(self) -> list[dict[str, Any]]:
        """Return the latest entries, oldest first."""
        return self.audit_log

    def get_violations(self) -> list[PolicyViolationError]:
        """Return the latest refusals, oldest first."""
        return list(self._violations)

    def get_stats(self) -> dict[str, Any]:
        """Return how much was admitted and refused here."""
        with self._counted:
            return {
                "total_tool_calls": self._total_tool_calls,
                "total_violations": self._total_violations,
                "uptime_seconds": time.monotonic() - self._started,
            }

    def _record(
        self, event: str, request: ToolCallRequest, *, kind: str, reason: str = "", category: str = "", kept: bool
    ) -> None:
        """Take down an admission, if those are kept, or a refusal, which always is."""
        if kind == "tool" and not reason:
            with self._counted:
                self._total_tool_calls += 1
        if kept or reason:
            self._audit_log.append(
                {
                    "timestamp": datetime.now(timezone.utc).isoformat(),
                    "event_type": event,
                    "tool_name": request.tool_name,
                    "allowed": not reason,
                    "reason": redacted(reason),
                    "category": category,
                    "arguments": redacted(request.arguments),
                    "agent_id": request.agent_id,
                    "call_id": request.call_id,
                }
            )

    def _violated(self, reason: str, category: str, tool: str) -> None:
        """Count a refusal, and tell whoever wants to know."""
        error = PolicyViolationError(reason, category=category, tool_name=tool)
        with self._counted:
            self._total_violations += 1
        self._violations.append(error)
        if self.on_violation is not None:
            try:
                self.on_violation(error)
            except Exception:
                logger.warning("govnode: on_violation failed", exc_info=True)
