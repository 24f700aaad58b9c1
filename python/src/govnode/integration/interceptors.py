"""Interceptors of tool calls, and the bounded semaphore: plain Python that needs no node (adapter contract 5, 15.1)."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import logging
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from ..guardrail import Decision, GuardrailProvider, denial, evaluate_chain
from ..policy import GovernancePolicy
from .values import ExecutionContext, ToolCallRequest, ToolCallResult

_log = logging.getLogger(__name__)

T = TypeVar("T")


@runtime_checkable
class ToolCallInterceptor(Protocol):
    """Judges a call before it is made (section 5.3)."""

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        """Tell whether the call may be made."""
        ...


class PolicyInterceptor:
    """Judges by a policy: approval, allowed tools, blocked patterns, count of calls (section 5.4)."""

    def __init__(self, policy: GovernancePolicy, context: ExecutionContext | None = None) -> None:
        self.policy = policy
        self.context = context

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        """Tell whether the call may be made. What cannot be judged may not."""
        try:
            reason = self._reason(request)
        except Exception as e:
            reason = f"Policy evaluation error (fail-closed): {e}"
        return ToolCallResult(allowed=reason is None, reason=reason)

    def _reason(self, request: ToolCallRequest) -> str | None:
        policy, tool = self.policy, request.tool_name
        if policy.require_human_approval:
            return f"Tool '{tool}' requires human approval per governance policy"
        if policy.allowed_tools and tool not in policy.allowed_tools:
            return f"Tool '{tool}' not in allowed list: {policy.allowed_tools}"
        if matched := policy.matches_pattern(str(request.arguments)):
            return f"Blocked pattern '{matched[0]}' detected in tool arguments"
        if self.context is not None and self.context.call_count >= policy.max_tool_calls:
            return f"Max tool calls exceeded ({policy.max_tool_calls})"
        return None


class ContentHashInterceptor:
    """Judges by the SHA-256 of the tool's source, so that a name leads to no other tool (section 5.5)."""

    def __init__(self, tool_hashes: Mapping[str, str] | None = None, strict: bool = True) -> None:
        self.tool_hashes = dict(tool_hashes or {})
        self.strict = strict

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        """Tell whether the tool is the one that was registered."""
        tool = request.tool_name
        expected, actual = self.tool_hashes.get(tool), request.metadata.get("content_hash")
        if expected is None:
            reason = f"Tool '{tool}' has no registered content hash (possible alias or wrapper)"
            if not self.strict:
                _log.warning("govnode: %s", reason)
                return ToolCallResult(allowed=True)
        elif not actual:
            reason = f"Tool '{tool}' call is missing content_hash metadata — cannot verify integrity"
        elif actual != expected:
            reason = (
                f"Tool '{tool}' content hash mismatch: expected {expected[:12]}… got {str(actual)[:12]}… "
                "(possible tampering or wrapper)"
            )
        else:
            return ToolCallResult(allowed=True)
        return ToolCallResult(allowed=False, reason=reason)


class GuardrailInterceptor:
    """Asks guardrail providers in turn, as an interceptor (proposal 004)."""

    def __init__(self, providers: Iterable[GuardrailProvider]) -> None:
        self.providers = list(providers)

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        """Tell whether all providers allow the call, and with which arguments."""
        asked = evaluate_chain(
            self.providers,
            tool_name=request.tool_name,
            args=copy.deepcopy(request.arguments),
            agent_name=request.agent_id or None,
            call_id=request.call_id or None,
        )
        result = _outside_of_loops(asked)
        if result.decision is Decision.DENY:
            return ToolCallResult(False, denial(result), audit_entry=result.metadata or None)
        changed = None if result.modified_args is None else dict(result.modified_args)
        return ToolCallResult(True, modified_arguments=changed, audit_entry=result.metadata or None)


def _outside_of_loops(asked: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end: on a thread of its own where a loop runs on this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, asked).result()


def content_hash(tool: Any) -> str | None:
    """Return the SHA-256 of the source of a tool, or None where it has none to be read (section 21.1).

    Of a wrapper it is the wrapper's source, whatever that says it wraps.
    """
    tool = getattr(tool, "__func__", tool)
    try:
        source = inspect.getsource(getattr(tool, "__code__", tool))
    except (TypeError, OSError):
        return None
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


class CompositeInterceptor:
    """Asks interceptors in turn; the first that denies ends (section 5.6).

    Each sees the arguments as those before left them, and the answer carries them. Where they were changed, all are
    asked once more about what they became, so that nobody has judged other arguments than those that are used.
    """

    def __init__(self, interceptors: Iterable[ToolCallInterceptor] | None = None) -> None:
        self.interceptors = list(interceptors or ())

    def add(self, interceptor: ToolCallInterceptor) -> CompositeInterceptor:
        """Add one to the end."""
        self.interceptors.append(interceptor)
        return self

    def intercept(self, request: ToolCallRequest) -> ToolCallResult:
        """Tell whether all allow the call. One that raises denies."""
        final, changed = request, False
        for interceptor in self.interceptors:
            result = _ask(interceptor, final)
            if not result.allowed:
                return result
            if result.modified_arguments is not None:
                changed = True
                final = replace(final, arguments=result.modified_arguments)
        if not changed:
            return ToolCallResult(allowed=True)
        for interceptor in self.interceptors:
            result = _ask(interceptor, final)
            if not result.allowed:
                return result
        return ToolCallResult(allowed=True, modified_arguments=final.arguments)


def _ask(interceptor: ToolCallInterceptor, request: ToolCallRequest) -> ToolCallResult:
    try:
        # With arguments of its own: what it does to them without saying so changes nothing.
        result = interceptor.intercept(replace(request, arguments=copy.deepcopy(request.arguments)))
        if not isinstance(result, ToolCallResult):
            raise TypeError(f"intercept must return a ToolCallResult, got {type(result).__name__}")
        if not isinstance(result.allowed, bool):
            raise TypeError(f"allowed must be a bool, got {type(result.allowed).__name__}")
        if result.modified_arguments is not None and not isinstance(result.modified_arguments, dict):
            raise TypeError(f"modified_arguments must be a dict, got {type(result.modified_arguments).__name__}")
        return result
    except Exception as e:
        _log.warning("govnode: %s failed, so the call is denied", type(interceptor).__name__, exc_info=True)
        return ToolCallResult(allowed=False, reason=f"{type(interceptor).__name__} failed (fail-closed): {e}")


class BoundedSemaphore:
    """Counts what goes on in this process, and says when it is nearly too much. The fleet's are on the service."""

    def __init__(self, max_concurrent: int = 10, backpressure_threshold: int = 8) -> None:
        if max_concurrent <= 0 or backpressure_threshold <= 0:
            raise ValueError("max_concurrent and backpressure_threshold must be positive integers")
        self.max_concurrent = max_concurrent
        self.backpressure_threshold = backpressure_threshold
        self._lock = threading.Lock()
        self._active = self._acquired = self._rejected = 0

    def try_acquire(self) -> tuple[bool, str | None]:
        """Take a place, or say why there is none. Does not wait."""
        with self._lock:
            if self._active >= self.max_concurrent:
                self._rejected += 1
                return False, f"Max concurrency reached ({self.max_concurrent})"
            self._active += 1
            self._acquired += 1
            return True, None

    def release(self) -> None:
        """Give a place back. Where none is taken, nothing changes."""
        with self._lock:
            self._active = max(0, self._active - 1)

    @property
    def active(self) -> int:
        """How many places are taken."""
        return self._active

    @property
    def available(self) -> int:
        """How many places are left."""
        return self.max_concurrent - self._active

    @property
    def is_under_pressure(self) -> bool:
        """Whether as many are taken as the threshold says."""
        return self._active >= self.backpressure_threshold

    def stats(self) -> dict[str, int | bool]:
        """Return all counts, of one moment."""
        with self._lock:
            return {
                "active": self._active,
                "max_concurrent": self.max_concurrent,
                "available": self.available,
                "under_pressure": self.is_under_pressure,
                "total_acquired": self._acquired,
                "total_rejected": self._rejected,
            }
