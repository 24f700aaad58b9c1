"""How an adapter comes to a call: all judge it, the service last, and takes it (adapter contract 3.6, 3.11)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .._wire import text_of
from ..errors import Error, NoAnswer
from ..policy import GovernancePolicy, PolicyConfig
from . import _policies
from .asking import Approvals
from .interceptors import CompositeInterceptor
from .records import Records
from .signals import Signals
from .values import ExecutionContext, ToolCallRequest

if TYPE_CHECKING:
    from ..client import Call, Client, Session

_LONGEST = 24 * 3600.0  # that the service holds a call
_PIECE, _STEP = 16_000, 15_000  # characters of a text that is scanned: 64 KiB at most, and pieces overlap


class Refusal(Exception):
    """Why a call may not be made."""

    def __init__(
        self,
        reason: str,
        category: str,
        approval_id: str = "",
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.category = category
        self.approval_id = approval_id
        self.retry_after = retry_after


class Admission(Signals, Approvals, Records):
    """What begins the calls of an adapter."""

    config: PolicyConfig | None
    _blocked_tools: list[str]
    _client: Client | None
    _cost: float | Decimal | Callable[[ToolCallRequest], float | Decimal] | None
    _evaluator: Any
    _interceptors: CompositeInterceptor
    _limits: dict[str, Any]
    _replace: bool
    _wait: float | None

    def _tree(self, policy: GovernancePolicy) -> _policies.Tree:
        """Return what a policy is on the service, with all that belongs to it here."""
        beside = self._evaluator.files if isinstance(self._evaluator, _policies.CedarEvaluator) else {}
        asks = self._approver is not None
        return _policies.tree_of(policy, self.config, self._limits, beside, asks, self._blocked_tools)

    def _admit(self, ctx: ExecutionContext, request: ToolCallRequest, kind: str, confidence: Any, tokens: int) -> Call:
        """Have everybody judge a call, the service last. Raises Refusal where somebody refuses."""
        session, options = self._judge(ctx, request, kind, confidence, tokens)
        options["max_hold"] = ctx._max_hold
        call = self._begin(ctx, session, request, options)
        self._braked(ctx, call.signal)
        if not call.admitted:
            raise self._why(session, request, options, call)
        return call

    def _judge(
        self, ctx: ExecutionContext, request: ToolCallRequest, kind: str, confidence: Any, tokens: int
    ) -> tuple[Session, dict[str, Any]]:
        """Have everybody here judge a call, and return with what the service is asked.

        Raises Refusal where somebody refuses. What an interceptor changes is changed in the request.
        """
        if self._killed or self._stopped:
            raise self._signalled()
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            raise ValueError(f"tokens must be a non-negative integer, got {tokens!r}")
        if not isinstance(request.arguments, dict):
            raise TypeError(f"arguments must be a dict, got {type(request.arguments).__name__}")
        if request.tool_name and kind not in ("tool", "sampling"):
            raise ValueError(f"kind: {kind}: a call that names a tool counts as one of it, and not by its kind")
        self._ask_evaluator(ctx, request, kind)
        if kind == "tool":
            result = self._interceptors.intercept(request)
            if not result.allowed:
                raise Refusal(result.reason or "denied by an interceptor", "interceptor")
            if result.modified_arguments is not None:
                request.arguments = result.modified_arguments
                self._ask_evaluator(ctx, request, kind)  # about what is executed, and nothing else
        session = self._session(ctx)
        if ctx._config is not None and ctx._config.pii_detection:
            self._scan(ctx, text_of(request.arguments), "input", request.tool_name)
        options: dict[str, Any] = {"order": "pre_execute", "kind": kind}
        options["on_signal"] = lambda signal: self._braked(ctx, signal)
        if confidence is not None:
            options["context"] = {"confidence": confidence}
        if request.metadata:
            options["metadata"] = {k: str(v) for k, v in request.metadata.items()}
        if tokens:
            options["tokens"] = tokens
        if self._cost is not None:
            options["budgets"] = {budget_of(ctx): self._cost(request) if callable(self._cost) else self._cost}
        return session, options

    def _signalled(self) -> Refusal:
        return Refusal("killed" if self._killed else "stopped", "signal")

    def _ask_evaluator(self, ctx: ExecutionContext, request: ToolCallRequest, kind: str) -> None:
        """Ask the evaluator of the user. The service is asked about a Cedar policy of its own with the call itself."""
        if self._evaluator is None or isinstance(self._evaluator, _policies.CedarEvaluator):
            return
        context = self._build_cedar_context(
            agent_id=ctx.agent_id,
            action_type={"tool": "tool_call", "handoff": "handoff"}.get(kind, f"{kind}_call"),
            tool_name=request.tool_name,
            tool_args=copy.deepcopy(request.arguments),
        )
        allowed, reason = self._evaluate_policy(context)
        if not allowed:
            raise Refusal(reason, "evaluator")

    def _begin(
        self, ctx: ExecutionContext, session: Session, request: ToolCallRequest, options: dict[str, Any]
    ) -> Call:
        """Begin a call. One that people are asked about keeps its id, for when it comes again."""
        waiting: dict[str, Any] = {} if self._wait is None else {"wait": self._wait}
        key = ""
        if request.call_id:
            options["call_id"] = f"{ctx.session_id}:{request.call_id}"
        else:
            about = {k: v for k, v in options.items() if k != "on_signal"}
            key = hashlib.sha256(text_of([request.tool_name, request.arguments, about]).encode()).hexdigest()
            with ctx._lock:
                if asked := ctx._asked.pop(key, []):
                    options["call_id"] = asked.pop(0)  # the first that was asked about: none is passed over for ever
                if asked:
                    ctx._asked[key] = asked
        id = options.get("call_id", "")
        try:
            if self._approval_callback is None:
                call = session.begin(request.tool_name, request.arguments, **options, **waiting)
            else:
                call = session.begin(request.tool_name, request.arguments, **options, **waiting, approval_wait=0)
                if call.outcome == "APPROVAL_REQUIRED":
                    options["call_id"] = id = call.id
                    self._call_back(request, call)
                    call = session.begin(request.tool_name, request.arguments, **options, **waiting)
        except NoAnswer:
            _remember(ctx, key, id)
            raise
        stands = call.approval is not None and call.approval.state in ("PENDING", "APPROVED")
        if not call.admitted and (stands or (id and call.outcome == "STOPPED")):
            _remember(ctx, key, call.id)
        return call

    def _session(self, ctx: ExecutionContext) -> Session:
        """Return the session of a context, under the policy that the context was made with."""
        with ctx._lock:
            if ctx._session is None:
                timeout = float(ctx.policy.timeout_seconds)
                if ctx._tree is not None:
                    policy = _policies.put(self.client, ctx._tree, self._replace)
                else:
                    policy = str(ctx._policy_name)
                    timeout = _policies.timeout_of(self.client, policy)
                if ctx._config is not None and ctx._config.max_budget is not None:
                    self.client.put_budget(budget_of(ctx), ctx._config.max_budget)
                session = self.client.session(ctx.session_id, agent=ctx.agent_id, policy=policy, parent=ctx._parent)
                session.open()
                # What is never ended is held for as long as the policy lets anything run.
                ctx._max_hold = max(1.0, min(timeout, _LONGEST))
                ctx._session = session
            return ctx._session

    def _scan(self, ctx: ExecutionContext, data: Any, kind: str, tool: str, *, redact: bool = False) -> str:
        """Have the service look for what is blocked or private in a text, and return the text to use.

        Raises Refusal where it finds something, unless the policy says to ``redact`` that, and the caller can.
        """
        if data is None:
            return ""
        text, session = str(data), self._session(ctx)
        for start in range(0, max(len(text), 1), _STEP):
            found = session.scan(text[start : start + _PIECE], kind=kind, tool=tool)
            if redact and found.allowed and found.action == "redact" and len(text) <= _PIECE:
                return found.redacted
            if not found.allowed or found.action != "allow":
                raise Refusal(found.reason or f"the {kind} holds personal data", found.category or "scan")
            if start + _PIECE >= len(text):
                break
        return text

    def _why(self, session: Session, request: ToolCallRequest, options: dict[str, Any], call: Call) -> Refusal:
        """Return why a call was refused, as the order of section 3.6 has it."""
        denied = call.denied()
        reason, category = denied.reason or denied.outcome.lower(), denied.outcome.lower()
        if denied.outcome == "DENIED_BY_POLICY":
            category = call.decision.category or category
        if denied.approval is not None:
            return Refusal(f"{reason} (approval {denied.approval.id})", "human_approval_required", denied.approval.id)
        if denied.signal is None:
            try:
                decision = session.evaluate(
                    request.tool_name,
                    request.arguments,
                    context=options.get("context"),
                    order="pre_execute",
                    metadata=options.get("metadata"),
                ).decision
                if not decision.allowed:
                    reason, category = decision.reason, decision.category or category
            except Error:  # then the first answer stands
                pass
        return Refusal(reason, category, retry_after=denied.retry_after)

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


def _remember(ctx: ExecutionContext, key: str, id: str) -> None:
    """Keep the id of a call that comes again. Each is taken by one caller alone, so that one yes is one call."""
    if key and id:
        with ctx._lock:
            ctx._asked.setdefault(key, []).append(id)


def budget_of(ctx: ExecutionContext) -> str:
    """Return the name of the budget of a session."""
    name = f"session/{ctx.session_id}"
    return name if len(name) <= 128 else "session/" + hashlib.sha256(name.encode()).hexdigest()
