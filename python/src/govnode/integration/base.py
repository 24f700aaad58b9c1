"""What all adapters are: contexts, and checks that are calls of the service (adapter contract 3, 17, 20).

Values are local, admission is the service's: what is checked before an execution begins a call there, and takes its
count and its slots; what is checked after it ends that call.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .._ids import Ids
from ..errors import LeaseLost, NoAnswer
from ..guardrail import GuardrailProvider
from ..policy import GovernancePolicy, PolicyConfig
from . import _policies
from ._checks import Caller, asked_for, caller_now, confidence_of, give_back, kind_of, owner_now, request_of, take
from .admission import Admission, Refusal, budget_of
from .asking import Approvals
from .interceptors import CompositeInterceptor, GuardrailInterceptor, ToolCallInterceptor, content_hash
from .records import MOST, Records, redacted
from .signals import Signals
from .values import (
    DriftResult,
    ExecutionContext,
    GovernanceEventType,
    PolicyCheckResult,
    PolicyViolationError,
    ToolCallRequest,
    compute_drift,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._calls import HeldCall
    from ..client import Client
    from ..messages import Ended

_ids = Ids()
_MOST_OPEN = 1024  # calls of a session
_STATUS = ("succeeded", "failed", "cancelled")


class BaseIntegration(Admission, ABC):
    """The part that all adapters share (section 3.2).

    - ``policy`` is a GovernancePolicy, a PolicyConfig, or the name of a policy on the service.
    - ``client`` is the one to ask, made at first use from GOVNODE_ADDRESSES if it is not given.
    - ``replace`` lets the policy take the place of another of its name.
    - ``wait`` is how long a call may wait for a slot, an approval or the end of a STOP.
    - ``interceptors`` and ``guardrails`` judge calls of tools before the service does.
    - ``limits`` are those that a GovernancePolicy has no field for, as docs/policies.md has them.
    - ``blocked_tools`` are denied by a rule.
    - ``cost`` is what a call is assumed to cost of ``max_budget``: a number, or what tells it from the request.
    - ``approver`` is a client that may approve; ``approval_callback`` decides for it at once. ``approver_name`` is the
      name of its votes, ``approver`` if none is given. Leave it out where the service knows the client by a token or a
      certificate: the votes are under that name then.
    - ``on_violation`` is told of each refusal.
    """

    #: The name of the framework, for health checks.
    backend = "govnode"
    #: What the contexts are.
    context_class: type[ExecutionContext] = ExecutionContext

    def __init__(
        self,
        policy: GovernancePolicy | PolicyConfig | str | None = None,
        evaluator: Any | None = None,
        *,
        client: Client | None = None,
        replace: bool = False,
        wait: float | None = None,
        interceptors: Iterable[ToolCallInterceptor] = (),
        guardrails: Iterable[GuardrailProvider] = (),
        limits: Mapping[str, Any] | None = None,
        blocked_tools: Iterable[str] = (),
        cost: float | Decimal | Callable[[ToolCallRequest], float | Decimal] | None = None,
        approver: Client | None = None,
        approver_name: str | None = None,
        approval_callback: Callable[[str, dict[str, Any]], bool] | None = None,
        on_violation: Callable[[PolicyViolationError], Any] | None = None,
    ) -> None:
        Signals.__init__(self)
        Approvals.__init__(self, approver, approver_name, approval_callback)
        Records.__init__(self, on_violation)
        self.config = policy if isinstance(policy, PolicyConfig) else None
        self._policy_name = policy if isinstance(policy, str) else None
        if isinstance(policy, PolicyConfig):
            self.policy = policy.to_policy()
        elif isinstance(policy, GovernancePolicy):
            self.policy = policy
        elif policy is None or (isinstance(policy, str) and policy):
            self.policy = GovernancePolicy(name=policy or "default")
        else:
            raise ValueError(f"policy must be a policy, or the name of one, got {policy!r}")
        self._made_with = copy.deepcopy(self.policy)
        self._evaluator = evaluator
        #: The last context of each agent.
        self.contexts: dict[str, ExecutionContext] = {}
        # Earlier ones of the same agents too, for as long as anybody has them.
        self._made: weakref.WeakValueDictionary[int, ExecutionContext] = weakref.WeakValueDictionary()
        self._client = client
        self._client_lock = threading.Lock()
        self._replace = replace
        self._wait = wait
        self._interceptors = CompositeInterceptor(interceptors)
        providers = list(guardrails)
        if providers:
            self._interceptors.add(GuardrailInterceptor(providers))
        self._limits = _policies.checked_limits(limits)
        self._blocked_tools = _policies.checked_names("blocked_tools", blocked_tools)
        self._cost = cost
        self._check()
        if isinstance(evaluator, _policies.CedarEvaluator):
            evaluator.bind(self)

    def _check(self) -> None:
        """Raise ValueError for what would not hold."""
        named, config = self._policy_name, self.config
        cedar = isinstance(self._evaluator, _policies.CedarEvaluator)
        for name, given in (("limits", self._limits), ("blocked_tools", self._blocked_tools)):
            if named and given:
                raise ValueError(f"{name}: policy {named!r} is on the service: write them there")
        if named and cedar:
            raise ValueError(f"policy: {named!r} is on the service: put the Cedar policy there, beside it")
        if config is not None and cedar and config.sensitive_tools:
            raise ValueError(
                "sensitive_tools: a yes of people would pass over the Cedar policy: forbid or ask, not both"
            )
        budget = config.max_budget if config is not None else None
        if config is not None and "max_agent_calls" in self._limits:
            raise ValueError("limits: max_agent_calls is a field of the policy: set it there")
        if (budget is None) != (self._cost is None):
            raise ValueError(
                "cost and max_budget go together: say what a call is assumed to cost, and how much there is"
            )

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
        ctx = self.context_class(agent_id, session_id or _ids.draw(), copy.deepcopy(self._current()))
        if self._policy_name is None:
            ctx._tree = self._tree(ctx.policy)
        ctx._policy_name = self._policy_name
        ctx._config = copy.deepcopy(self.config)
        self.contexts[agent_id] = self._made[id(ctx)] = ctx
        return ctx

    def _living(self) -> list[ExecutionContext]:
        """Return all contexts that calls may still be made in."""
        made = [ref() for ref in self._made.valuerefs()]  # a copy: other threads make contexts meanwhile
        return [*self.contexts.values(), *(ctx for ctx in made if ctx is not None)]

    def _current(self) -> GovernancePolicy:
        """Return the policy as it is now. Raises ValueError where it was changed and that would not hold."""
        changed = self.policy != self._made_with
        if self._policy_name is not None and changed:
            raise ValueError(f"policy: {self._policy_name!r} is on the service: make an adapter with another policy")
        if self.config is None:
            return self.policy
        self.config.__post_init__()
        now = self.config.to_policy()
        if changed and now != self._made_with:
            raise ValueError("policy and config were both changed: change one of them")
        return self.policy if changed else now

    def end_context(self, ctx: ExecutionContext) -> None:
        """Close the session of a context now, which otherwise ends when it has idled, and forget its budget."""
        with ctx._lock:
            session, ctx._session = ctx._session, None
        if self.contexts.get(ctx.agent_id) is ctx:
            del self.contexts[ctx.agent_id]
        self._made.pop(id(ctx), None)
        if session is not None:
            session.close()
            if ctx._config is not None and ctx._config.max_budget is not None:
                self.client.delete_budget(budget_of(ctx))

    def tool_request(
        self,
        ctx: ExecutionContext,
        tool_name: str,
        arguments: dict[str, Any],
        *,
        tool: Any = None,
        call_id: str = "",
    ) -> ToolCallRequest:
        """Return the call of a tool, with the hash of its source where that is given and can be read (section 21.1)."""
        found = content_hash(tool) if tool is not None else None
        metadata = {"content_hash": found} if found else {}
        return ToolCallRequest(tool_name, arguments, call_id, ctx.agent_id, metadata)

    # Checks.

    def pre_execute_check(
        self, ctx: ExecutionContext, input_data: Any, *, kind: str = "", tokens: int = 0
    ) -> PolicyCheckResult:
        """Begin a call of the context, or tell why it may not be (section 3.6). Without an answer it may not.

        A ToolCallRequest is the call of its tool; anything else is for the model, unless ``kind`` says tool, model,
        agent, handoff or sampling. Only tool and sampling (the server's label) name a tool: the service counts every
        other call that names one as a call of it. ``tokens`` is how many it may use.
        """
        return self._pre(ctx, input_data, caller_now(), kind, tokens)

    def post_execute_check(
        self,
        ctx: ExecutionContext,
        output_data: Any,
        *,
        status: str | None = None,
        tokens: int | None = None,
        cost: float | Decimal | None = None,
    ) -> PolicyCheckResult:
        """End the call that this task or thread began last in the context, or the oldest that is open (section 3.7).

        ``status`` is succeeded, failed or cancelled. Without it an exception as the output has failed. ``tokens`` and
        ``cost`` are what it used; without them it used what it was admitted for.
        """
        return self._post(ctx, output_data, caller_now().owner, status, tokens, cost)

    def pre_execute(self, ctx: ExecutionContext, input_data: Any) -> tuple[bool, str | None]:
        """Do what ``pre_execute_check`` does."""
        return self.pre_execute_check(ctx, input_data).to_legacy_tuple()

    def post_execute(self, ctx: ExecutionContext, output_data: Any) -> tuple[bool, str | None]:
        """Do what ``post_execute_check`` does."""
        return self.post_execute_check(ctx, output_data).to_legacy_tuple()

    async def async_pre_execute_check(
        self, ctx: ExecutionContext, input_data: Any, *, kind: str = "", tokens: int = 0
    ) -> PolicyCheckResult:
        """Do what ``pre_execute_check`` does, and leave the loop free meanwhile (section 3.8)."""
        caller = Caller(owner_now())
        # What is not said is left out: another adapter's twin may not know of it.
        named = {k: v for k, v in (("kind", kind), ("tokens", tokens)) if v}
        try:
            return await asked_for(caller, self.pre_execute_check, ctx, input_data, **named)
        except asyncio.CancelledError:
            # The thread goes on: what it has begun, or begins yet, is nobody's.
            with ctx._lock:
                caller.gone = True
                left = [c for _, c in ctx._open if c is caller.call]
                ctx._open = [(o, c) for o, c in ctx._open if c is not caller.call]
            for call in left:
                threading.Thread(target=give_back, args=(call,), daemon=True).start()
            raise

    async def async_post_execute_check(
        self,
        ctx: ExecutionContext,
        output_data: Any,
        *,
        status: str | None = None,
        tokens: int | None = None,
        cost: float | Decimal | None = None,
    ) -> PolicyCheckResult:
        """Do what ``post_execute_check`` does, and leave the loop free meanwhile."""
        given = {"status": status, "tokens": tokens, "cost": cost}
        named = {k: v for k, v in given.items() if v is not None}
        return await asked_for(Caller(owner_now()), self.post_execute_check, ctx, output_data, **named)

    async def async_pre_execute(self, ctx: ExecutionContext, input_data: Any) -> tuple[bool, str | None]:
        """Do what ``async_pre_execute_check`` does."""
        return (await self.async_pre_execute_check(ctx, input_data)).to_legacy_tuple()

    async def async_post_execute(self, ctx: ExecutionContext, output_data: Any) -> tuple[bool, str | None]:
        """Do what ``async_post_execute_check`` does."""
        return (await self.async_post_execute_check(ctx, output_data)).to_legacy_tuple()

    def _pre(self, ctx: ExecutionContext, input_data: Any, caller: Caller, kind: str, tokens: int) -> PolicyCheckResult:
        request, kind = request_of(ctx, input_data), kind or kind_of(input_data)
        self.emit(GovernanceEventType.POLICY_CHECK, {"agent_id": ctx.agent_id, "tool_name": request.tool_name})
        try:
            call = self._admit(ctx, request, kind, confidence_of(input_data), tokens)
        except _policies.PolicyConflict as e:
            self._last_error = str(e)
            raise
        except Exception as e:
            return self._refuse(ctx, request, kind, self._failed(e))
        with ctx._lock:
            if len(ctx._open) >= _MOST_OPEN:  # those that nobody ended
                ctx._open = [(o, c) for o, c in ctx._open if c.state != "lost"]
            caller.call = call
            if not caller.gone:
                ctx._open.append((caller.owner, call))
        if caller.gone:
            give_back(call)
            return PolicyCheckResult(False, "the caller was cancelled", "cancelled")
        self._took(ctx, request, kind, call)
        return PolicyCheckResult(True, arguments=call.arguments)

    def _took(self, ctx: ExecutionContext, request: ToolCallRequest, kind: str, call: HeldCall) -> None:
        """Take down a call that was admitted."""
        if kind == "tool":
            made = {"tool_name": request.tool_name, "call_id": call.id, "arguments": redacted(call.arguments)}
            with ctx._lock:
                ctx.tool_calls.append(made)
                del ctx.tool_calls[:-MOST]
        self._record("tool_call", request, kind=kind, kept=ctx.policy.log_all_calls)

    def _post(
        self,
        ctx: ExecutionContext,
        output_data: Any,
        owner: object,
        status: str | None,
        tokens: int | None,
        cost: float | Decimal | None,
    ) -> PolicyCheckResult:
        if status is None and isinstance(output_data, BaseException):
            status = "failed" if isinstance(output_data, Exception) else "cancelled"
        status = status or "succeeded"
        if status not in _STATUS:
            raise ValueError(f"status must be one of {', '.join(_STATUS)}, got {status!r}")
        if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0):
            raise ValueError(f"tokens must be a non-negative integer, got {tokens!r}")
        if cost is not None and (ctx._config is None or ctx._config.max_budget is None):
            raise ValueError("cost: there is no max_budget that it could be counted in")
        if cost is not None and not 0 <= cost <= 10**12:
            raise ValueError(f"cost must be a number from 0 to 10^12, got {cost!r}")
        request = request_of(ctx, None)
        try:
            call = take(ctx, owner)
            if call is None:  # nobody checked before: what was executed is counted all the same
                call = self._admit(ctx, request, "model", None, tokens or 0)
            spent = None if cost is None else {budget_of(ctx): cost}
            ended = call.end(status, output=output_data, tokens=tokens, spent=spent)
            if ended is None and not call.failed_open:
                raise LeaseLost(f"govnode: call {call.id}: its lease was lost before it ended")
            if ended is not None:
                self._ended(ctx, ended)
            if (
                call.reviews
                and call._left() is not None
                and (ended is None or ended.review is None or ended.review.changed)
            ):
                raise Refusal(f"the output must not be used as it is: {call.shown}", "output_review")
            if status == "succeeded" and ctx._config is not None and ctx._config.pii_detection:
                self._scan(ctx, output_data, "output", "")
        except _policies.PolicyConflict:
            raise
        except Exception as e:
            return self._refuse(ctx, request, "model", self._failed(e))
        return PolicyCheckResult(True)

    def _ended(self, ctx: ExecutionContext, ended: Ended) -> None:
        """Follow the answer to the end of a call."""
        with ctx._lock:  # answers to calls that end at once come in any order, and some have one index
            ctx._counted = max(ctx._counted, (ended.index, ended.counters.executions, ended.counters.tokens_used))
            _, ctx.call_count, ctx.total_tokens = ctx._counted
        about = {"agent_id": ctx.agent_id, "session_id": ctx.session_id, "call_count": ctx.call_count}
        if ended.drift is not None and ended.drift.exceeded:
            drift = {"drift_score": ended.drift.score, "threshold": ended.drift.threshold}
            self.emit(GovernanceEventType.DRIFT_DETECTED, {**about, **drift})
        if ended.checkpoint_id:
            ctx.checkpoints.append(ended.checkpoint_id)
            self.emit(GovernanceEventType.CHECKPOINT_CREATED, {**about, "checkpoint_id": ended.checkpoint_id})

    def _failed(self, error: Exception) -> Refusal:
        """Return an error as a refusal: what cannot be judged may not be done."""
        if isinstance(error, Refusal):
            return error
        self._last_error = str(error)
        if isinstance(error, LeaseLost):
            return Refusal(str(error), "lease_lost")
        category = "no_answer" if isinstance(error, NoAnswer) else "error"
        reason = f"Policy evaluation error (fail-closed): {error}"
        return Refusal(reason, category)

    def _refuse(self, ctx: ExecutionContext, request: ToolCallRequest, kind: str, why: Refusal) -> PolicyCheckResult:
        """Take down a refusal, and tell of it, as the service does (section 3.9.3)."""
        reason = why.reason or why.category
        about = {"agent_id": ctx.agent_id, "session_id": ctx.session_id, "tool_name": request.tool_name}
        events = [GovernanceEventType.POLICY_VIOLATION]
        if kind == "tool":
            events.append(GovernanceEventType.TOOL_CALL_BLOCKED)
        self._record(events[-1].value, request, kind=kind, reason=reason, category=why.category, kept=True)
        self._violated(reason, why.category, request.tool_name)
        for event in events:
            self.emit(event, {**about, "reason": reason, "category": why.category})
        return PolicyCheckResult(False, reason, why.category, approval_id=why.approval_id, retry_after=why.retry_after)

    @staticmethod
    def compute_drift(ctx: ExecutionContext, output_data: Any) -> DriftResult | None:
        """Compare an output with the first of the context (section 3.12)."""
        return compute_drift(ctx, output_data)

    def health_check(self) -> dict[str, Any]:
        """Tell within a second how the adapter and the service are (section 17)."""
        answered = threading.Event()

        def ask() -> None:
            try:
                self.client.status(timeout=0.9)
                answered.set()
            except Exception as e:
                self._last_error = str(e)

        # On a thread, since looking up a name may take longer.
        thread = threading.Thread(target=ask, name="govnode-health", daemon=True)
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
