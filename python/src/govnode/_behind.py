"""What is done behind callers that do not wait for it, by the keeper."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

from ._keeper import Ask, NotYet
from ._transport import Lost

log = logging.getLogger("govnode")


def settled(answered: tuple[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Raise Lost for an error that is worth sending the request again."""
    status, answer = answered
    if status >= 500 or status == 429 or status == 408:
        raise Lost(str(answer.get("message", status)))
    return answered


def ending(body: dict[str, Any]) -> Callable[[Ask], None]:
    """Return what ends a call."""
    return lambda ask: void(settled(ask("CallService/EndCall", body)))


def releasing(body: dict[str, Any]) -> Callable[[Ask], None]:
    """Return what releases a slot."""
    return lambda ask: void(settled(ask("SlotService/ReleaseSlot", body)))


def abandoning(call: dict[str, Any], within: float) -> Callable[[Ask], None]:
    """Return what gives back what a call may have been granted whose caller does not wait for the answer any more.

    For so many seconds that the service knows no such call proves nothing: it may be on its way, or a guardrail or a
    STOP may hold it.
    """
    until = time.monotonic() + within

    def abandon(ask: Ask) -> None:
        last = time.monotonic() >= until
        status, answer = settled(ask("CallService/CancelCall", call))
        if status == 404 and not last:
            raise NotYet(str(answer.get("message", status)))
        if status == 404 or answer.get("outcome") == "OUTCOME_CANCELLED":
            return  # it never arrived, or it waited
        settled(ask("CallService/EndCall", {**call, "status": "STATUS_CANCELLED"}))

    return abandon


def abandoning_slot(body: dict[str, Any]) -> Callable[[Ask], None]:
    """Return the same for a slot."""

    def abandon(ask: Ask) -> None:
        status, answer = settled(ask("SlotService/AcquireSlot", {**body, "wait": "0.001s"}))
        if status == 200 and answer.get("outcome") == "OUTCOME_ADMITTED":
            released = {k: body[k] for k in ("pool", "slotId", "client")}
            settled(ask("SlotService/ReleaseSlot", {**released, "token": answer["token"]}))

    return abandon


def counting(
    create: Callable[[], dict[str, Any] | None], begin: dict[str, Any], end: dict[str, Any], anew: str
) -> Callable[[Ask], None]:
    """Return what counts a call that was allowed without an answer: under its id, or anew if that only waited.

    ``create`` returns what makes its session, unless that is there. The call does not wait for room, since renewals
    would wait with it, and if it is refused it is not begun anew, since each time would be an attempt of the session.
    """
    context = json.loads(begin.get("contextJson") or "{}")
    begin = {**begin, "contextJson": json.dumps({**context, "fail_open": True})}
    begin.pop("wait", None)
    call: dict[str, Any] = {k: end[k] for k in ("sessionId", "callId", "sessionToken") if k in end}

    def count(ask: Ask) -> None:
        if session := create():
            settled(ask("SessionService/CreateSession", session))
        last = end
        status, answer = settled(ask("CallService/BeginCall", begin))
        if status != 200:  # of an id that was used with other content: the first request has arrived after all
            _, came = settled(ask("CallService/CancelCall", call))
            if came.get("outcome") in ("OUTCOME_CANCELLED", "OUTCOME_WAIT_TIMEOUT"):
                last = {**end, "callId": anew}
                status, answer = settled(ask("CallService/BeginCall", {**begin, "callId": anew}))
        if status != 200 or answer.get("outcome") == "OUTCOME_ADMITTED":
            status, answer = settled(ask("CallService/EndCall", last))
            if status == 200:
                return
        elif answer.get("outcome") == "OUTCOME_APPROVAL_REQUIRED":  # nobody is to decide about what has run
            settled(ask("CallService/CancelCall", {**call, "callId": last["callId"]}))
        log.warning(
            "govnode: call %s of session %s was allowed without an answer, and is not counted: %s",
            end["callId"], end["sessionId"], answer.get("reason") or answer.get("message") or answer.get("outcome"),
        )  # fmt: skip

    return count


def void(_: object) -> None:
    """Return nothing."""
