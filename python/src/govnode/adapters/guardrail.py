"""govnode as one of the providers of a chain (proposal 004), for any host of them.

    providers = [Redact(), GovnodeGuardrail(session)]

A provider is asked before a tool runs, and is never told that it has ended. The wrappers of govnode tell it all the
same (``judge``). In other hosts a call ends with the task that asked for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..guardrail import Decision, GuardrailProvider, GuardrailResult, evaluate_chain
from ._gate import Gate, Killed, Passage, PolicyViolationError, Sessions, text_of

log = logging.getLogger("govnode")

# Whether the host of the chain shows what tools return to rules, as the wrappers of govnode do.
_shows: contextvars.ContextVar[bool] = contextvars.ContextVar("govnode_shows", default=False)

#: Is told of each call (its tool, its id, what the chain came to). Where it raises, the call is denied.
OnResult = Callable[[str, "str | None", GuardrailResult], None]


class GovnodeGuardrail:
    """Begins a call when it is asked, and judges the arguments as the providers before it left them.

    It belongs last in the chain: what a provider behind it changes was not judged, and what one behind it denies was
    admitted. ``session`` is a session, or a function that returns one by the name of the agent (empty if the host does
    not tell it). The arguments of ``Gate`` may follow; ``on_denied="raise"`` ends the run where a host can do that.

    In a host that does not say when a tool has ended, the call ends with the task that asked, but after ``hold``
    seconds at the latest. What the tool returns is seen in no such host: a call at whose output rules look is denied.
    """

    def __init__(self, session: Sessions, *, hold: float = 300.0, **options: Any) -> None:
        if hold <= 0:
            raise ValueError("govnode: hold must be above 0")
        self.gate = Gate(session, **options)
        self._hold = hold

    async def evaluate(
        self,
        *,
        tool_name: str,
        args: Mapping[str, Any],
        agent_name: str | None = None,
        call_id: str | None = None,
        cancellation_token: Any = None,
    ) -> GuardrailResult:
        """Ask govnode whether the call may be made."""
        asking = asyncio.ensure_future(
            self.gate.aenter(tool_name, args, call_id=call_id or "", conversation=agent_name or "")
        )
        if cancellation_token is not None:
            cancellation_token.link_future(asking)
        try:
            passage = await asking
        except PolicyViolationError as e:
            return Admission(Decision.DENY, text_of(e.denied), metadata=_trail(e.denied.outcome), error=e)
        except asyncio.CancelledError:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                asking.result().end_behind("cancelled")  # the answer was there, but not yet here
            if cancellation_token is not None and cancellation_token.is_cancelled() and not _cancelling():
                return GuardrailResult(Decision.DENY, "cancelled")
            raise
        passage.refuse_unfit(changes=True, shows=_shows.get())
        if passage.denied is not None:
            error = Killed(passage.denied) if passage.killed else None
            return Admission(Decision.DENY, passage.text, metadata=_trail(passage.denied.outcome), error=error)
        admission = Admission(
            Decision.MODIFY if passage.changed else Decision.ALLOW,
            modified_args=passage.arguments if passage.changed else None,
            metadata=_trail("ADMITTED", passage),
            passage=passage,
        )
        admission.watch(self._hold)
        return admission


@dataclass
class Admission(GuardrailResult):
    """What govnode came to: with the call that is open, or what is to end the run."""

    passage: Passage | None = field(default=None, repr=False)
    error: PolicyViolationError | None = None
    _unwatch: Callable[[], None] | None = field(default=None, repr=False)

    def watch(self, seconds: float) -> None:
        """End the call with the task that asks, or after a time: nobody may ever say that the tool has ended."""
        task = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(seconds, self.drop)

        def with_task(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                self.drop()
            elif task.exception() is not None:
                self.drop("failed")
            elif task.result() is not self:  # a task that asked and did no more is no measure of the tool
                self.drop("succeeded")

        def unwatch() -> None:
            timer.cancel()
            if task is not None:
                task.remove_done_callback(with_task)

        if task is not None:
            task.add_done_callback(with_task)
        self._unwatch = unwatch

    def drop(self, status: str = "cancelled") -> None:
        """End the call without waiting for that."""
        self._adopt()
        if self.passage is not None:
            self.passage.end_behind(status)

    async def arun(self, work: Callable[[], Awaitable[Any]], **how: Any) -> Any:
        """Run the tool, and end the call with it, as ``Passage.arun`` does."""
        self._adopt()
        if self.passage is None:
            return await work()
        return await self.passage.arun(work, **how)

    def _adopt(self) -> None:
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()


@dataclass
class Judgement:
    """What a chain came to."""

    result: GuardrailResult
    admissions: list[Admission]

    @property
    def denied(self) -> bool:
        """Whether the tool must not run."""
        return self.result.decision is Decision.DENY

    @property
    def error(self) -> PolicyViolationError | None:
        """What is to end the run, where a host can do that."""
        return next((a.error for a in self.admissions if a.error is not None), None)

    @property
    def reviews(self) -> bool:
        """Whether rules look at what the tool returns: nobody may see of it before ``arun`` has returned."""
        return any(a.passage is not None and a.passage.reviews for a in self.admissions)

    def arguments(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments to use."""
        changed = self.result.modified_args
        return given if self.result.decision is not Decision.MODIFY or changed is None else changed

    async def arun(self, work: Callable[[], Awaitable[Any]], **how: Any) -> Any:
        """Run the tool, as ``Passage.arun`` does, and end with it what the providers hold for it."""
        for admission in self.admissions:
            work = functools.partial(admission.arun, work, **how)
        return await work()


async def judge(
    providers: Sequence[GuardrailProvider],
    *,
    tool_name: str,
    args: Mapping[str, Any],
    call_id: str | None,
    on_result: OnResult | None = None,
    **call: Any,
) -> Judgement:
    """Ask a chain. Unless it denies, ``arun`` must follow at once. What it denies holds nothing any more."""
    results: list[GuardrailResult] = []
    denied = True
    token = _shows.set(True)
    try:
        result = await evaluate_chain(
            providers, tool_name=tool_name, args=args, call_id=call_id, results=results, **call
        )
        if on_result is not None:
            try:
                on_result(tool_name, call_id, result)
            except Exception as e:
                log.exception("govnode: %s is denied: on_result failed", tool_name)
                result = GuardrailResult(Decision.DENY, f"on_result failed (fail-closed): {e}")
        denied = result.decision is Decision.DENY
    finally:
        _shows.reset(token)
        admissions = [r for r in results if isinstance(r, Admission)]
        if denied:
            for admission in admissions:
                admission.drop()
    return Judgement(result, admissions)


def checked(providers: Iterable[GuardrailProvider]) -> tuple[GuardrailProvider, ...]:
    """Return the providers of a chain. Raises TypeError for what is none: it would deny every call."""
    chain = tuple(providers)
    for provider in chain:
        if not isinstance(provider, GuardrailProvider):
            raise TypeError(f"govnode: {type(provider).__name__} is no GuardrailProvider: it has no evaluate")
    return chain


def _trail(outcome: str, passage: Passage | None = None) -> dict[str, Any]:
    trail = {"outcome": outcome}
    if passage is not None and passage.call is not None and passage.ways is not None:
        trail |= {"session": passage.ways.id, "call": passage.call.id}
    return {"govnode": trail}


def _cancelling() -> bool:
    task = asyncio.current_task()
    return bool(getattr(task, "cancelling", lambda: 0)())
