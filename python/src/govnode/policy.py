"""The governance policy of an adapter: values, which need no node (adapter contract, sections 4 and 12.2)."""

from __future__ import annotations

import copy
import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

__all__ = ["GovernancePolicy", "PatternType", "PolicyConfig"]

_POSITIVE = ("max_tokens", "timeout_seconds", "max_concurrent", "backpressure_threshold", "checkpoint_frequency")
_THRESHOLDS = ("confidence_threshold", "drift_threshold")
_FLAGS = ("require_human_approval", "log_all_calls")
# Where less is stricter. Of confidence_threshold more is.
_LESS = ("max_tokens", "max_tool_calls", "timeout_seconds", "max_concurrent", "backpressure_threshold",
         "checkpoint_frequency")  # fmt: skip


class PatternType(Enum):
    """How a blocked pattern is compared with a text, always without regard to case (section 4.3)."""

    SUBSTRING = "substring"
    REGEX = "regex"
    GLOB = "glob"


@functools.lru_cache(maxsize=4096)
def _compile(pattern: str, kind: PatternType) -> re.Pattern[str]:
    """Compile once for all policies: a list that is changed later is compiled when it is next asked."""
    if kind is PatternType.SUBSTRING:
        return re.compile(re.escape(pattern.lower()))
    return re.compile(fnmatch.translate(pattern) if kind is PatternType.GLOB else pattern, re.IGNORECASE)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass
class GovernancePolicy:
    """The limits, thresholds and audit settings that hold for an agent (section 4.1)."""

    name: str = "default"
    max_tokens: int = 4096
    max_tool_calls: int = 10
    allowed_tools: list[str] = field(default_factory=list)
    blocked_patterns: list[str | tuple[str, PatternType]] = field(default_factory=list)
    require_human_approval: bool = False
    timeout_seconds: int = 300
    confidence_threshold: float = 0.8
    drift_threshold: float = 0.15
    log_all_calls: bool = True
    checkpoint_frequency: int = 5
    max_concurrent: int = 10
    backpressure_threshold: int = 8
    version: str = "1.0.0"

    def __post_init__(self) -> None:
        self.validate()

    def __hash__(self) -> int:
        return hash(tuple(repr(getattr(self, f.name)) for f in fields(self)))

    def __repr__(self) -> str:
        return f"GovernancePolicy({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"

    def validate(self) -> None:
        """Raise ValueError for the first field that is not as it must be (section 4.2)."""
        for name in _POSITIVE:
            value = getattr(self, name)
            if not _is_int(value) or value <= 0:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not _is_int(self.max_tool_calls) or self.max_tool_calls < 0:
            raise ValueError(f"max_tool_calls must be a non-negative integer, got {self.max_tool_calls!r}")
        for name in _THRESHOLDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be a float between 0.0 and 1.0, got {value!r}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be a boolean, got {getattr(self, name)!r}")
        if not isinstance(self.allowed_tools, list):
            raise ValueError(f"allowed_tools must be a list, got {type(self.allowed_tools).__name__}")
        for i, tool in enumerate(self.allowed_tools):
            if not isinstance(tool, str):
                raise ValueError(f"allowed_tools[{i}] must be a string, got {type(tool).__name__}: {tool!r}")
        if not isinstance(self.blocked_patterns, list):
            raise ValueError(f"blocked_patterns must be a list, got {type(self.blocked_patterns).__name__}")
        for name in ("version", "name"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a non-empty string, got {getattr(self, name)!r}")
        for i, entry in enumerate(self.blocked_patterns):
            self._validate_pattern(i, entry)

    @staticmethod
    def _validate_pattern(i: int, entry: object) -> None:
        if isinstance(entry, str):
            return
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)):
            raise ValueError(f"blocked_patterns[{i}] must be a string or a (pattern, PatternType) pair, got {entry!r}")
        if not isinstance(entry[1], PatternType):
            raise ValueError(f"blocked_patterns[{i}] must have a PatternType, got {entry[1]!r}")
        try:
            _compile(*entry)
        except re.error as e:
            raise ValueError(f"blocked_patterns[{i}] has invalid {entry[1].value} '{entry[0]}': {e}") from e

    def matches_pattern(self, text: str) -> list[str]:
        """Return the blocked patterns that the text hits, in the order of the policy (section 4.3)."""
        found = []
        for entry in self.blocked_patterns:
            pattern, kind = (entry, PatternType.SUBSTRING) if isinstance(entry, str) else entry
            if _compile(pattern, kind).search(text.lower() if kind is PatternType.SUBSTRING else text):
                found.append(pattern)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, which YAML and JSON can hold (section 4.4)."""
        values = {f.name: copy.copy(getattr(self, f.name)) for f in fields(self)}
        values["blocked_patterns"] = [
            entry if isinstance(entry, str) else {"pattern": entry[0], "type": entry[1].value}
            for entry in self.blocked_patterns
        ]
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GovernancePolicy:
        """Return the policy that a mapping describes. Keys that no field has are left out."""
        known = {f.name for f in fields(cls)}
        values = {name: copy.copy(value) for name, value in data.items() if name in known}
        patterns = values.get("blocked_patterns")
        if isinstance(patterns, list):
            values["blocked_patterns"] = [_entry(p) for p in patterns]
        return cls(**values)

    def to_yaml(self) -> str:
        """Return the policy as YAML, with all its fields."""
        import yaml

        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True))

    @classmethod
    def from_yaml(cls, yaml_str: str) -> GovernancePolicy:
        """Return the policy that a YAML text describes. Raises ValueError where it is not one."""
        import yaml

        try:
            data = yaml.safe_load(yaml_str)
        except yaml.YAMLError as e:
            raise ValueError(f"invalid YAML: {e}") from e
        if not isinstance(data, dict):
            raise ValueError(f"Expected a YAML mapping, got {type(data).__name__}")
        return cls.from_dict(data)

    def save(self, filepath: str | Path) -> None:
        """Write the policy to a YAML file."""
        Path(filepath).write_text(self.to_yaml(), encoding="utf-8")

    @classmethod
    def load(cls, filepath: str | Path) -> GovernancePolicy:
        """Read the policy from a YAML file."""
        return cls.from_yaml(Path(filepath).read_text(encoding="utf-8"))

    def diff(self, other: GovernancePolicy) -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ, each with its two values (section 4.5.1)."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def is_stricter_than(self, other: GovernancePolicy) -> bool:
        """Tell whether nothing is looser here, and something tighter (section 4.5.2).

        No list of allowed tools allows all of them, so that any list is stricter than none.
        """
        mine, others = frozenset(self.allowed_tools), frozenset(other.allowed_tools)
        no_looser = (
            all(getattr(self, name) <= getattr(other, name) for name in _LESS)
            and self.confidence_threshold >= other.confidence_threshold
            and len(self.blocked_patterns) >= len(other.blocked_patterns)
            and self.require_human_approval >= other.require_human_approval
            and (not others or (bool(mine) and mine <= others))
        )
        tighter = (
            any(getattr(self, name) < getattr(other, name) for name in _LESS)
            or self.confidence_threshold > other.confidence_threshold
            or len(self.blocked_patterns) > len(other.blocked_patterns)
            or self.require_human_approval > other.require_human_approval
            or mine != others
        )
        return no_looser and tighter

    def compare_versions(self, other: GovernancePolicy) -> dict[str, Any]:
        """Return both versions and what changed from this policy to the other (section 4.5.3)."""
        return {
            "old_version": self.version,
            "new_version": other.version,
            "versions_differ": self.version != other.version,
            "changes": self.diff(other),
        }

    def detect_conflicts(self) -> list[str]:
        """Return a warning for each setting that defeats another (section 4.6)."""
        warnings = []
        if self.backpressure_threshold >= self.max_concurrent:
            warnings.append(
                f"backpressure_threshold ({self.backpressure_threshold}) is not below max_concurrent "
                f"({self.max_concurrent}): backpressure never begins"
            )
        if self.max_tool_calls == 0 and self.allowed_tools:
            warnings.append("max_tool_calls is 0: none of the allowed_tools can be called")
        if self.confidence_threshold == 0.0:
            warnings.append("confidence_threshold is 0.0: confidence is not checked")
        if self.timeout_seconds < 5:
            warnings.append(f"timeout_seconds is {self.timeout_seconds}: hardly time for any work")
        return warnings


def _entry(entry: Any) -> Any:
    """Return a blocked pattern as the policy holds it. What is not one is left for validate to name."""
    if isinstance(entry, Mapping):
        if not isinstance(entry.get("pattern"), str):
            raise ValueError(f"Invalid blocked_pattern entry: {entry!r}")
        pattern, kind = entry["pattern"], entry.get("type", "substring")
    elif isinstance(entry, (list, tuple)) and len(entry) == 2:
        pattern, kind = entry
    else:
        return entry
    try:
        kind = PatternType(kind)
    except ValueError:
        raise ValueError(f"Unknown pattern type: {kind!r}") from None
    return pattern if kind is PatternType.SUBSTRING and isinstance(entry, Mapping) else (pattern, kind)


@dataclass
class PolicyConfig:
    """The settings with which the adapters of ADK and smolagents are made (section 12.2)."""

    max_tool_calls: int = 50
    max_agent_calls: int = 20
    timeout_seconds: int = 300
    allowed_tools: list[str] = field(default_factory=list)
    blocked_tools: list[str] = field(default_factory=list)
    blocked_patterns: list[str] = field(default_factory=list)
    pii_detection: bool = True
    log_all_calls: bool = True
    require_human_approval: bool = False
    sensitive_tools: list[str] = field(default_factory=list)
    max_budget: float | Decimal | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for the first field that is not as it must be."""
        if not _is_int(self.max_agent_calls) or self.max_agent_calls < 0:
            raise ValueError(f"max_agent_calls must be a non-negative integer, got {self.max_agent_calls!r}")
        for name in ("blocked_tools", "sensitive_tools", "blocked_patterns"):
            value = getattr(self, name)
            if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
                raise ValueError(f"{name} must be a list of texts that are not empty, got {value!r}")
        if not isinstance(self.pii_detection, bool):
            raise ValueError(f"pii_detection must be a boolean, got {self.pii_detection!r}")
        budget = self.max_budget
        if budget is not None and (
            isinstance(budget, bool) or not isinstance(budget, (int, float, Decimal)) or not 0 <= budget <= 10**12
        ):
            raise ValueError(f"max_budget must be a number from 0 to 10^12, got {budget!r}")
        self.to_policy()

    def to_policy(self, name: str = "default") -> GovernancePolicy:
        """Return the GovernancePolicy that the adapter derives from it.

        What that has no field for, BaseIntegration writes into the policy on the service.
        """
        return GovernancePolicy(
            name=name,
            max_tool_calls=self.max_tool_calls,
            timeout_seconds=self.timeout_seconds,
            allowed_tools=copy.copy(self.allowed_tools),
            blocked_patterns=list(self.blocked_patterns),
            require_human_approval=self.require_human_approval,
            log_all_calls=self.log_all_calls,
        )
