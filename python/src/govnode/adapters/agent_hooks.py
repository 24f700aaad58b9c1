"""AGENT-HOOKS-0.1: one interceptor for every host of the contract.

    from govnode.adapters.agent_hooks import GovnodeInterceptor

    hooks = create_agent_hooks_middleware([..., GovnodeInterceptor(session)])
    agent = Agent(client=client, tools=[...], middleware=[hooks])

It belongs last among the interceptors: one behind it could still change the arguments, or deny a call that holds a
slot.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ._gate import Gate, Killed, Passage, Sessions, missing, text_of

try:
    from agent_hooks import ALLOW, Decision, Transform, Verdict
except ImportError as e:
    raise missing("agent-hooks", "agent-hooks") from e

log = logging.getLogger("govnode")

_MOST_OPEN = 10_000  # calls of which the host reports no end


class GovnodeInterceptor:
    """Asks govnode at ``pre_tool_call``, and ends the call at ``post_tool_call``.

    ``session`` is a session, or a function that returns one by the id of the agent, or with ``by="session"`` by that of
    the session of the host: many hosts make a new one for every run. The arguments of ``Gate`` may follow. ``wait`` is
    shorter than elsewhere, since a host takes an interceptor for failed that needs more than 5 seconds: who waits
    longer gives the host another ``timeout``.

    A denial is a final deny: no approval of the host lifts it, for then no slot would be held. A session that is killed
    is denied at every point, and at a tool call it is an exception, as a denial is with ``on_denied="raise"``: a failed
    interceptor to the host, which ends the run. What is still open at ``agent_shutdown`` is ended there; a host that
    never reports that point needs ``options={"max_hold": ...}``.
    """

    def __init__(self, session: Sessions, *, by: str = "agent", wait: float = 3.0, **options: Any) -> None:
        if by not in ("agent", "session"):
            raise ValueError(f'govnode: by: {by!r} is neither "agent" nor "session"')
        self.gate = Gate(session, wait=wait, **options)
        self._by = by
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, str], list[Passage]] = OrderedDict()

    async def intercept(self, context: Mapping[str, Any], /) -> Verdict:
        """Give the verdict on one point of a run."""
        point = context["interception_point"]
        if point == "pre_tool_call":
            return await self._begin(context)
        if point == "post_tool_call":
            return await self._end(context)
        if point == "agent_shutdown":
            self._abandon(context["session"]["id"])
            return ALLOW
        killed = self.gate.killed(context[self._by]["id"])
        return ALLOW if killed is None else Verdict.deny(reason="KILLED", message=text_of(killed))

    async def _begin(self, context: Mapping[str, Any]) -> Verdict:
        call, session = context["tool_call"], context["session"]["id"]
        # The target is what the tool will get: those before may have changed it.
        passage = await self.gate.aenter(
            call["name"], context["target"], call_id=call["id"], run_id=session, conversation=context[self._by]["id"]
        )
        if passage.denied is not None:
            if passage.killed:
                log.warning("govnode: %s: %s", call["name"], passage.text)  # hosts tell the name of an error alone
                raise Killed(passage.denied)
            return Verdict.deny(reason=passage.denied.outcome, message=passage.text)
        self._keep((session, call["id"]), passage)
        if passage.changed:
            return Verdict(decision=Decision.TRANSFORM, transform=Transform("$target", passage.arguments))
        return ALLOW

    async def _end(self, context: Mapping[str, Any]) -> Verdict:
        call, result = context["tool_call"], context["tool_result"]
        passage = self._take((context["session"]["id"], call["id"]))
        if passage is not None:
            if call["args"] != passage.arguments:
                log.warning("govnode: %s ran with other arguments than were judged: register it last", call["name"])
            await passage.aend("failed" if result.get("is_error") else "succeeded", result.get("value"))
            if passage.shown is not None:
                return Verdict(decision=Decision.TRANSFORM, transform=Transform("$target", passage.shown))
        return ALLOW

    def _abandon(self, session: str) -> None:
        """End what has no end of its own: calls that were cancelled, or that an interceptor behind this one denied."""
        with self._lock:
            gone = [self._open.pop(key) for key in list(self._open) if key[0] == session]
        for passage in (p for passages in gone for p in passages):
            passage.end_behind("cancelled")

    def _keep(self, key: tuple[str, str], passage: Passage) -> None:
        with self._lock:
            self._open.setdefault(key, []).append(passage)
            oldest = self._open.popitem(last=False)[1] if len(self._open) > _MOST_OPEN else []
        for forgotten in oldest:
            forgotten.end_behind("cancelled")

    def _take(self, key: tuple[str, str]) -> Passage | None:
        with self._lock:
            passages = self._open.get(key)
            if not passages:
                return None
            passage = passages.pop(0)
            if not passages:
                del self._open[key]
        return passage
