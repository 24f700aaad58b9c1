"""What adapters hand around: requests, results, contexts, events, drift (adapter contract 3.9, 3.12, 5, 20.2)."""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..errors import PolicyViolationError as PolicyViolationError
from ..policy import GovernancePolicy, PolicyConfig

if TYPE_CHECKING:
    from ..client import Call, Session
    from ._policies import Tree

logger = logging.getLogger("govnode.integration")

_ID = re.compile(r"[A-Za-z0-9._:@/-]{1,128}")


class GovernanceEventType(Enum):
    """What an adapter tells its listeners of (section 3.9.3)."""

    POLICY_CHECK = "policy_check"
    POLICY_VIOLATION = "policy_violation"
    TOOL_CALL_BLOCKED = "tool_call_blocked"
    CHECKPOINT_CREATED = "checkpoint_created"
    DRIFT_DETECTED = "drift_detected"


@dataclass(frozen=True)
class PolicyCheckResult:
    """What a check came to (section 3.6)."""

    allowed: bool
    reason: str | None = None
    category: str = ""
    #: The arguments to use: as interceptors, guardrails and the service have left them.
    arguments: dict[str, Any] | None = None
    #: Of the approval that is asked for, or that was refused.
    approval_id: str = ""
    #: Seconds after which it may be different; 0 where there is no such time.
    retry_after: float = 0.0

    def to_legacy_tuple(self) -> tuple[bool, str | None]:
        """Return whether it is allowed, and why not."""
        return self.allowed, None if self.allowed else self.reason

    def require(self) -> None:
        """Raise PolicyViolationError if it is not allowed (section 20.2)."""
        if not self.allowed:
            raise PolicyViolationError(self.reason or "denied", category=self.category)


@dataclass
class ToolCallRequest:
    """A call of a tool, as every framework's looks to interceptors (section 5.1)."""

    tool_name: str
    arguments: dict[str, Any]
    call_id: str = ""
    agent_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolCallResult:
    """What an interceptor came to (section 5.2)."""

    allowed: bool
    reason: str | None = None
    modified_arguments: dict[str, Any] | None = None
    audit_entry: dict[str, Any] | None = None


@dataclass
class DriftResult:
    """How far an output is from the first one: 0.0 is the same, 1.0 all different (section 3.12)."""

    score: float
    exceeded: bool
    threshold: float
    baseline_hash: str
    current_hash: str

    def __repr__(self) -> str:
        state = "EXCEEDED" if self.exceeded else "OK"
        return f"DriftResult({state}, score={self.score:.4f}, threshold={self.threshold})"


@dataclass
class ExecutionContext:
    """A session of an agent (section 3.5). What it counts follows the answers of the service."""

    agent_id: str
    session_id: str
    policy: GovernancePolicy
    start_time: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    call_count: int = 0
    total_tokens: int = 0
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    _baseline_hash: str | None = field(default=None, repr=False)
    _baseline_text: str | None = field(default=None, repr=False)
    # The index, executions and tokens of the latest answer; over Redis, where answers have no index, the highest.
    _counted: tuple[int, int, int] = field(default=(0, 0, 0), repr=False, compare=False)
    # Calls that were begun and not ended, with the task or thread that began each.
    _open: list[tuple[object, Call]] = field(default_factory=list, repr=False, compare=False)
    # What the policy is on the service, as it was when the context was made; or the name of one that is there.
    _tree: Tree | None = field(default=None, repr=False, compare=False)
    _policy_name: str | None = field(default=None, repr=False)
    _config: PolicyConfig | None = field(default=None, repr=False, compare=False)
    # The session on the service, from the first check on, and how long a call of it may be held.
    _session: Session | None = field(default=None, repr=False, compare=False)
    _max_hold: float = field(default=0.0, repr=False, compare=False)
    # The session that started this one.
    _parent: str | None = field(default=None, repr=False, compare=False)
    # The ids of calls that people are asked about, by what the calls are.
    _asked: dict[str, list[str]] = field(default_factory=dict, repr=False, compare=False)
    # The signal of the service that was last told of.
    _signalled: str = field(default="", repr=False, compare=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("agent_id", "session_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _ID.fullmatch(value):
                raise ValueError(f"{name} must be 1 to 128 characters of [A-Za-z0-9._:@/-], got {value!r}")
        if not isinstance(self.policy, GovernancePolicy):
            raise ValueError(f"policy must be a GovernancePolicy, got {type(self.policy).__name__}")


def compute_drift(ctx: ExecutionContext, output_data: Any) -> DriftResult | None:
    """Compare an output with the first of the context, which is kept and gives None (section 3.12)."""
    text = str(output_data)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if ctx._baseline_hash is None or ctx._baseline_text is None:
        ctx._baseline_hash, ctx._baseline_text = digest, text
        return None
    score = 1.0 - difflib.SequenceMatcher(None, ctx._baseline_text, text).ratio()
    threshold = ctx.policy.drift_threshold
    return DriftResult(score, score > threshold, threshold, ctx._baseline_hash, digest)
