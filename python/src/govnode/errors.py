"""What callers see where something is not done: refusals, and the absence of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._calls import HeldCall, HeldSlot
    from .messages import CallApproval, Signal


class Error(Exception):
    """What all errors of this package are."""


class Denied(Error):
    """A call or a slot is not granted, and nothing may be done.

    ``outcome`` says what refused, as the service names it, without its prefix: ``DENIED_BY_POLICY``, ``CALL_LIMIT``,
    ``WAIT_TIMEOUT`` and so on. ``reason`` is in words that an agent can act on, ``retry_after`` in seconds, 0 where
    there is no time after which it may be different.
    """

    def __init__(
        self,
        outcome: str,
        reason: str = "",
        retry_after: float = 0.0,
        *,
        matched_rule: str = "",
        decision_id: str = "",
        signal: Signal | None = None,
        approval: CallApproval | None = None,
        answer: HeldCall | HeldSlot | None = None,
    ) -> None:
        super().__init__(f"{outcome.lower()}: {reason}" if reason else outcome.lower())
        self.outcome = outcome
        self.reason = reason
        self.retry_after = retry_after
        self.matched_rule = matched_rule
        self.decision_id = decision_id
        self.signal = signal
        #: With APPROVAL_REQUIRED, APPROVAL_DENIED and APPROVAL_EXPIRED: how the approval of the call stands.
        self.approval = approval
        #: The whole answer of the service, where there is one.
        self.answer = answer


class NoAnswer(Denied):
    """No node answered in time, and nothing was changed. Without an answer there is no admission."""

    def __init__(self, operation: str, id: str, reason: str, *, outcome: str = "NO_ANSWER") -> None:
        super().__init__(outcome, f"{operation} {id}: {reason}" if id else f"{operation}: {reason}")
        self.operation = operation
        self.id = id
        #: Whether people had been asked about the call before: with its ``call_id`` it goes on once they have agreed.
        self.pending = False


class Unknown(NoAnswer):
    """A request was sent and no answer came in time: it may have taken effect or not.

    Sending it again with the same id gives the one answer there is. What a call or a slot may have been granted is
    given back behind the scenes, where its id was drawn by the client and ``fail_open`` does not allow it. ``answered``
    is true where a node was there in the end and objects, so that ``fail_open`` allows nothing.
    """

    def __init__(self, operation: str, id: str, reason: str, *, answered: bool = False) -> None:
        super().__init__(operation, id, f"outcome unknown: {reason}", outcome="OUTCOME_UNKNOWN")
        self.answered = answered


class Rejected(Error):
    """The service objects to the request itself. Nothing was changed.

    ``code`` is Connect's name of the code (``invalid_argument``), ``reason`` the service's (``INVALID_FIELD``), both
    as in docs/api.md. ``metadata`` has for instance the ``field``.
    """

    def __init__(
        self, operation: str, code: str, reason: str, message: str, metadata: dict[str, str] | None = None
    ) -> None:
        super().__init__(f"{operation}: {code}: {message}")
        self.operation = operation
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}


class Unauthenticated(Rejected):
    """The service does not know who calls: a token is missing, not known, or does not hold any more."""


class PermissionDenied(Rejected):
    """The roles or the scope of the token do not allow this."""


class LeaseLost(Error):
    """A slot, or the slots of a call, are held no longer: the lease ran out, was ended, or belongs to another."""


class PolicyViolationError(Error):
    """What a policy does not allow was to be done (adapter contract 20.2): of an adapter that was told to raise."""

    def __init__(self, message: str = "", *, category: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.category = category
        self.tool_name = tool_name
