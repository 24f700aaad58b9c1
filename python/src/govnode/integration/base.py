"""What all adapters are: contexts, checks that are calls of the service, events, signals (adapter contract 3, 17, 20).

Values are local, admission is the service's: what is checked before an execution begins a call there, and takes its
count and its slots; what is checked after it ends that call.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .._ids import Ids
from ..errors import Error, LeaseLost, NoAnswer
from ..policy import GovernancePolicy
from . import _policies
from .interceptors import CompositeInterceptor, ToolCallInterceptor
from .values import (
    DriftResult,
    ExecutionContext,
    GovernanceEventType,
    PolicyCheckResult,
    ToolCallRequest,
    compute_drift,
)

if TYPE_CHECKING:
    from ..client import Call, Client, Session

_log = logging.getLogger(__name__)
_ids = Ids()
_TOOL = "execute"  # the name of what is executed, where it is no call of a tool
_LONGEST = 24 * 3600.0  # that the service holds a call


class BaseIntegration(ABC):
    """The part that all adapters share (section 3.2).

    ``policy`` is an object, or the name of a policy on the service. ``client`` is the one to ask, made at first use
    from GOVNODE_ADDRESSES if it is not given. ``replace`` lets the policy take the place of another of its name.
    ``wait`` is how long a call may wait for a slot. ``interceptors`` of the user judge before the service does.
    """

    #: The name of the framework, for health checks.
    backend = "govnode"

    def __init__(
        self,
        policy: GovernancePolicy | str | None = None,
        evaluator: Any | None = None,
        *,
        client: Client | None = None,
        replace: bool = False,
        wait: float | None = None,
        interceptors: Iterable[ToolCallInterceptor] = (),
    ) -> None:
        self._policy_ref = policy if isinstance(policy, str) else None
        self.policy = policy if isinstance(policy, GovernancePolicy) else GovernancePolicy(name=policy or "default")
        self._evaluator = evaluator
        self.contexts: dict[str, ExecutionContext] = {}
        self._signal_handlers: dict[str, Callable[[str], Any]] = {}
        self._event_listeners: dict[GovernanceEventType, list[Callable[[Any], Any]]] = {}
        self._last_error: str | None = None
        self._client = client
        self._client_lock = threading.Lock()
        self._replace = replace
        self._wait = wait
        self._interceptors = CompositeInterceptor(interceptors)
        self._started = time.monotonic()
        if isinstance(evaluator, _policies.CedarEvaluator):
            evaluator.bind(self)

    @abstractmethod
    def wrap(self, agent: Any) -> Any:
        """Return the agent, governed."""

    @abstractmethod
    def unwrap(self, governed_agent: Any) -> Any:
        """Return the agent that was governed."""

    @classmethod
    def from_cedar(
        cls,
        policy_path: str | None = None,
        policy_content: str | None = None,
        entities: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return an adapter whose policy on the service has a Cedar policy beside it (section 3.4)."""
        evaluator = _policies.CedarEvaluator.load(policy_path, policy_content, entities)
        return cls(evaluator=evaluator, **kwargs)

    @property
    def client(self) -> Client:
        """The client that is asked."""
        with self._client_lock:
            if self._client is None:
                from ..client import Client

                self._client = Client()
            return self._client

    def create_context(self, agent_id: str, session_id: str | None = None) -> ExecutionContext:
        """Return a new context of an agent, with a copy of the policy as it is now (section 3.5).

        It is local: the first check creates the session. Processes that share counts give the same ``session_id``.
        """
        ctx = ExecutionContext(agent_id, session_id or _ids.draw(), copy.deepcopy(self.policy))
        ctx._policy_ref = self._policy_ref
        self.contexts[agent_id] = ctx
        return ctx

    # Checks.

    def pre_execute_check(self, ctx: ExecutionContext, input_data: Any) -> PolicyCheckResult:
        """Begin a call of the context, or tell why it may not be (section 3.6). Without an answer it may not."""
        return self._pre(ctx, input_data, _owner())

    def post_execute_check(self, ctx: ExecutionContext, output_data: Any) -> PolicyCheckResult:
        """End the call that this task or thread began last in the context, or the oldest that is open (section 3.7)."""
        return self._post(ctx, output_data, _owner())

    def pre_execute(self, ctx: ExecutionContext, input_data: Any) -> tuple[bool, str | None]:
        """Do what ``pre_execute_check`` does."""
        return self.pre_execute_check(ctx, input_data).to_legacy_tuple()

    def post_execute(self, ctx: ExecutionContext, output_data: Any) -> tuple[bool, str | None]:
        """Do what ``post_execute_check`` does."""
        return self.post_execute_check(ctx, output_data).to_legacy_tuple()

    async def async_pre_execute_check(self, ctx: ExecutionContext, input_data: Any) -> PolicyCheckResult:
        """Do what ``pre_execute_check`` does, and leave the loop free meanwhile (section 3.8)."""
        return await asyncio.to_thread(self._pre, ctx, input_data, _owner())

    async def async_post_execute_check(self, ctx: ExecutionContext, output_data: Any) -> PolicyCheckResult:
        """Do what ``post_execute_check`` does, and leave the loop free meanwhile."""
        return await asyncio.to_thread(self._post, ctx, output_data, _owner())

    async def async_pre_execute(self, ctx: ExecutionContext, input_data: Any) -> tuple[bool, str | None]:
        """Do what ``async_pre_execute_check`` does."""
        return (await self.async_pre_execute_check(ctx, input_data)).to_legacy_tuple()

    async def async_post_execute(self, ctx: ExecutionContext, output_data: Any) -> tuple[bool, str | None]:
        """Do what ``async_post_execute_check`` does."""
        return (await self.async_post_execute_check(ctx, output_data)).to_legacy_tuple()

    def _pre(self, ctx: ExecutionContext, input_data: Any, owner: object) -> PolicyCheckResult:
        request = _request(ctx, input_data)
        self.emit(GovernanceEventType.POLICY_CHECK, {"agent_id": ctx.agent_id, "tool_name": request.tool_name})
        if self._evaluator is not None and not isinstance(self._evaluator, _policies.CedarEvaluator):
            context = self._build_cedar_context(
                agent_id=ctx.agent_id, tool_name=request.tool_name, tool_args=request.arguments
            )
            allowed, reason = self._evaluate_policy(context)
            if not allowed:
                return self._refuse(ctx, request, reason, "evaluator", GovernanceEventType.TOOL_CALL_BLOCKED)
        result = self._interceptors.intercept(request)
        if not result.allowed:
            return self._refuse(ctx, request, result.reason or "", "interceptor", GovernanceEventType.TOOL_CALL_BLOCKED)
        if result.modified_arguments is not None:
            request.arguments = result.modified_arguments
        try:
            call = self._begin(ctx, request, input_data)
            if not call.admitted:
                reason, category = self._why(ctx, request, input_data, call)
                return self._refuse(ctx, request, reason, category, GovernanceEventType.POLICY_VIOLATION)
        except Error as e:
            self._last_error = str(e)
            category = "no_answer" if isinstance(e, NoAnswer) else "error"
            return self._refuse(
                ctx, request, f"Policy evaluation error (fail-closed): {e}", category,
                GovernanceEventType.POLICY_VIOLATION,
            )  # fmt: skip
        ctx._open.append((owner, call))
        return PolicyCheckResult(True)

    def _post(self, ctx: ExecutionContext, output_data: Any, owner: object) -> PolicyCheckResult:
        try:
            call = _take(ctx, owner)
            if call is None:  # nobody checked before: what was executed is counted all the same
                call = self._begin(ctx, _request(ctx, None), None)
                if not call.admitted:
                    return PolicyCheckResult(False, call.reason, call.denied().outcome.lower())
            ended = call.end("succeeded", output=output_data)
        except Error as e:
            self._last_error = str(e)
            if not isinstance(e, LeaseLost):
                return PolicyCheckResult(False, f"Policy evaluation error (fail-closed): {e}", "error")
            return PolicyCheckResult(False, str(e), "lease_lost")
        if ended is None:
            return PolicyCheckResult(True)
        ctx.call_count, ctx.total_tokens = ended.counters.executions, ended.counters.tokens_used
        about = {"agent_id": ctx.agent_id, "session_id": ctx.session_id, "call_count": ctx.call_count}
        if ended.drift is not None and ended.drift.exceeded:
            drift = {"drift_score": ended.drift.score, "threshold": ended.drift.threshold}
            self.emit(GovernanceEventType.DRIFT_DETECTED, {**about, **drift})
        if ended.checkpoint_id:
            ctx.checkpoints.append(ended.checkpoint_id)
            self.emit(GovernanceEventType.CHECKPOINT_CREATED, {**about, "checkpoint_id": ended.checkpoint_id})
        return PolicyCheckResult(True)

    def _begin(self, ctx: ExecutionContext, request: ToolCallRequest, input_data: Any) -> Call:
        """Begin the call, in the session of the context."""
        options: dict[str, Any] = {"order": "pre_execute", "context": _context(input_data)}
        if request.call_id:
            options["call_id"] = f"{ctx.session_id}:{request.call_id}"
        if request.metadata:
            options["metadata"] = {k: str(v) for k, v in request.metadata.items()}
        if self._wait is not None:
            options["wait"] = self._wait
        # What is never ended is held for as long as the policy lets anything run.
        options["max_hold"] = min(float(ctx.policy.timeout_seconds), _LONGEST)
        return self._session(ctx).begin(request.tool_name, request.arguments, **options)

    def _session(self, ctx: ExecutionContext) -> Session:
        """Return the session of a context, under the policy that the context was made with."""
        if ctx._policy_ref is None:
            files = self._evaluator.files if isinstance(self._evaluator, _policies.CedarEvaluator) else {}
            ctx._policy_ref = _policies.put(self.client, ctx.policy, files, self._replace)
        return self.client.session(ctx.session_id, agent=ctx.agent_id, policy=ctx._policy_ref)

    def _why(self, ctx: ExecutionContext, request: ToolCallRequest, input_data: Any, call: Call) -> tuple[str, str]:
        """Return why a call was refused, as the order of section 3.6 has it."""
        denied = call.denied()
        try:
            decision = (
                self._session(ctx)
                .evaluate(request.tool_name, request.arguments, context=_context(input_data), order="pre_execute")
                .decision
            )
        except Error:  # then the first answer stands
            decision = None
        if decision is None or decision.allowed:
            return denied.reason or denied.outcome.lower(), denied.outcome.lower()
        return decision.reason, decision.category or denied.outcome.lower()

    def _refuse(
        self, ctx: ExecutionContext, request: ToolCallRequest, reason: str, category: str, event: GovernanceEventType
    ) -> PolicyCheckResult:
        about = {"agent_id": ctx.agent_id, "session_id": ctx.session_id, "tool_name": request.tool_name}
        self.emit(event, {**about, "reason": reason, "category": category})
        return PolicyCheckResult(False, reason, category)

    def _build_cedar_context(
        self,
        agent_id: str = "",
        action_type: str = "tool_call",
        tool_name: str = "",
        tool_args: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return what the evaluator is asked about (section 3.11.1)."""
        return {"agent_id": agent_id, "action_type": action_type, "tool_name": tool_name, "tool_args": tool_args or {}}

    def _evaluate_policy(self, context: dict[str, Any]) -> tuple[bool, str]:
        """Ask the evaluator, where there is one (section 3.11.2). One that raises denies."""
        if self._evaluator is None:
            return True, ""
        try:
            decision = self._evaluator.evaluate(context)
            if decision.allowed is True:
                return True, ""
            return False, str(decision.reason or "Policy denied by evaluator")
        except Exception as exc:
            self._last_error = str(exc)
            return False, f"Policy evaluation error (fail-closed): {exc}"

    @staticmethod
    def compute_drift(ctx: ExecutionContext, output_data: Any) -> DriftResult | None:
        """Compare an output with the first of the context (section 3.12)."""
        return compute_drift(ctx, output_data)

    # Events and signals.

    def on(self, event_type: GovernanceEventType, callback: Callable[[Any], Any]) -> None:
        """Call ``callback`` with the data of each event of a type (section 3.9.1)."""
        self._event_listeners.setdefault(event_type, []).append(callback)

    def emit(self, event_type: GovernanceEventType, data: dict[str, Any]) -> None:
        """Tell the listeners. What they raise is logged, and stops nothing (section 3.9.2)."""
        for callback in list(self._event_listeners.get(event_type, ())):
            try:
                callback(data)
            except Exception:
                _log.warning("govnode: a listener of %s failed", event_type.value, exc_info=True)

    def on_signal(self, signal: str, handler: Callable[[str], Any]) -> None:
        """Call ``handler`` with the agent's id on a signal. The last one that is set counts (section 3.10.1)."""
        self._signal_handlers[signal] = handler

    def signal(self, agent_id: str, signal: str) -> None:
        """Call the handler of a signal, where there is one (section 3.10.2). The fleet is braked by the client's."""
        handler = self._signal_handlers.get(signal)
        if handler is not None:
            handler(agent_id)

    def health_check(self) -> dict[str, Any]:
        """Tell within a second how the adapter and the service are (section 17)."""
        answered = threading.Event()

        def ask() -> None:
            try:
                self.client.status()
                answered.set()
            except Exception as e:
                self._last_error = str(e)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(1.0)
        connected = answered.is_set()
        status = "unhealthy" if not connected else "degraded" if self._last_error else "healthy"
        return {
            "status": status,
            "backend": self.backend,
            "backend_connected": connected,
            "last_error": self._last_error,
            "uptime_seconds": time.monotonic() - self._started,
        }


def _owner() -> object:
    """Return the task that runs, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.current_thread()


def _take(ctx: ExecutionContext, owner: object) -> Call | None:
    """Take the call that is ended now from those that are open."""
    for i in range(len(ctx._open) - 1, -1, -1):
        if ctx._open[i][0] is owner:
            return ctx._open.pop(i)[1]
    return ctx._open.pop(0)[1] if ctx._open else None


def _request(ctx: ExecutionContext, input_data: Any) -> ToolCallRequest:
    """Return what is executed as the call of a tool."""
    if isinstance(input_data, ToolCallRequest):
        return copy.copy(input_data)
    arguments = dict(input_data) if isinstance(input_data, dict) else {"input": str(input_data)}
    return ToolCallRequest(_TOOL, arguments, agent_id=ctx.agent_id)


def _context(input_data: Any) -> dict[str, Any] | None:
    confidence = getattr(input_data, "confidence", None)
    return None if confidence is None else {"confidence": confidence}
