"""Sessions, calls and slots: what the sync and the async client have in common of them."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from . import _review, messages
from ._behind import abandoning, abandoning_slot, counting, ending, releasing
from ._core import REPEATS, UNCERTAIN, UNTOUCHED, Live, Operation, closed
from ._keeper import Ask, Lease
from ._operations import Operations
from ._options import CallOptions, SlotOptions, begin_body, check_options
from ._wire import MOST_OUTPUT, budgets_of, duration, policy_ref
from .errors import Denied, LeaseLost, NoAnswer, Rejected, Unknown
from .messages import decode, seconds, word

log = logging.getLogger("govnode")

_FAIL_OPEN_KEPT = 24 * 3600.0  # seconds for which a call is kept that is to be counted
_TTL = 30.0  # the service's own


class Held:
    """What holds a lease, or was refused one."""

    def __init__(self, core: Leases, live: Live, id: str, answer: dict[str, Any], lease: Lease | None) -> None:
        self._core = core
        self._live = live
        self._answer = answer
        self._lease = lease
        self.id = id
        self.outcome = word(answer["outcome"])

    @property
    def admitted(self) -> bool:
        """Whether it may be done."""
        return self._lease is not None

    @property
    def reason(self) -> str:
        """Why not, in words that an agent can act on."""
        return str(self._answer.get("reason", ""))

    @property
    def retry_after(self) -> float:
        """Seconds after which it may be different; 0 where there is no such time."""
        return seconds(self._answer.get("retryAfter", 0))

    @property
    def pressure(self) -> messages.Pressure:
        """How full the pool was."""
        return decode(messages.Pressure, self._answer.get("pressure", {}))

    @property
    def state(self) -> str:
        """Whether the lease is held, at risk (a renewal failed), lost, or ended (given back); else not held."""
        return self._lease.now() if self._lease is not None else "not held"

    @property
    def signal(self) -> messages.Signal | None:
        """The STOP or KILL that refused it, or that came with the last renewal."""
        if self._lease is not None and self._lease.signal is not None:
            return self._lease.signal
        return decode(messages.Signal, self._answer["signal"]) if "signal" in self._answer else None

    @property
    def answer(self) -> Mapping[str, Any]:
        """The whole answer of the service, with the names of the API."""
        return self._answer

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost. For whoever works long, to ask now and then."""
        if self.state == "lost":
            raise LeaseLost(f"govnode: {self.id}: the lease was lost")

    def _elsewhere(self) -> bool:
        """Report whether it belongs to the parent of this process, or to a client that is closed."""
        return self._core._live is not self._live or self._live.closed or self._live.generation != generation()


def generation() -> int:
    """Return how often this process was forked."""
    from . import _core

    return _core._generation


class HeldCall(Held):
    """A call that was begun, or refused."""

    def __init__(
        self,
        core: Leases,
        live: Live,
        body: dict[str, Any],
        answer: dict[str, Any],
        lease: Lease | None,
        session: LazySession,
        given: Mapping[str, Any] | str | None,
    ) -> None:
        super().__init__(core, live, body["callId"], answer, lease)
        self._body = body
        self._session = session
        self._given = given
        self._ended: messages.Ended | None = None
        self._settled = False
        self._given_out: Any = None  # what the call returned
        self._sent: Any = None  # the same as rules see it
        self._unjudged = ""  # why rules could not be asked
        #: What the call gave, for drift and for rules that look at outputs.
        self.output: Any = None
        #: What it really used; replaces what was reserved, which stands if this is None.
        self.tokens: int | None = None
        #: What it has cost, by budget; one that is not named keeps what was assumed.
        self.spent: Mapping[str, str | int | float | Decimal] = {}
        #: succeeded, failed or cancelled; if it is not set, by how the block is left.
        self.status: str | None = None

    @property
    def session_id(self) -> str:
        """The session of the call."""
        return str(self._body["sessionId"])

    @property
    def failed_open(self) -> bool:
        """Whether it was allowed only because no node answered."""
        return self.outcome == "FAIL_OPEN"

    @property
    def admitted(self) -> bool:
        """Whether it may be done."""
        return self._lease is not None or self.failed_open

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments to use: as they were given, or as a guardrail of the policy has changed them."""
        changed = self._answer.get("modifiedArguments")
        if changed is not None:
            return dict(changed)
        given = json.loads(self._given) if isinstance(self._given, str) else self._given
        return dict(given or {})

    @property
    def decision(self) -> messages.Decision:
        """What the policy decided."""
        return decode(messages.Decision, self._answer.get("decision", {}))

    @property
    def matched_rule(self) -> str:
        """The rule of the policy that decided; empty if none did."""
        return str(self._answer.get("decision", {}).get("matchedRule", ""))

    @property
    def decision_id(self) -> str:
        """The name of the decision, for explain."""
        return str(self._answer.get("decisionId", ""))

    @property
    def approval(self) -> messages.CallApproval | None:
        """Where people are asked: how that stands. Until they have decided the same id may come again."""
        return decode(messages.CallApproval, self._answer["approval"]) if "approval" in self._answer else None

    @property
    def counters(self) -> messages.Counters:
        """The counters of the session, right after the call began."""
        return decode(messages.Counters, self._answer.get("counters", {}))

    @property
    def grants(self) -> list[messages.Grant]:
        """The slots of the call, with their fencing tokens."""
        return [decode(messages.Grant, g) for g in self._answer.get("grants", ())]

    @property
    def ended(self) -> messages.Ended | None:
        """The answer to the end of the call: counters, drift, checkpoint, and what rules made of its output."""
        return self._ended

    @property
    def reviews(self) -> bool:
        """Whether rules look at what the call returns: then ``shown`` is what a model may see of it."""
        return bool(self._answer.get("reviews"))

    @property
    def _wants_output(self) -> bool:
        """Whether anybody looks at what it returns: rules, or who compares it with what came before."""
        return self.reviews or self._session.compares

    @property
    def shown(self) -> Any:
        """What is to be shown of the output, once the call is ended: that itself, unless rules changed it.

        Warnings of rules stand below it. Where rules look at the output and have not judged it, nothing of it is shown.
        """
        left = self._left()
        return self._given_out if left is None else left

    def _left(self) -> Any:
        """Return what takes the place of the output; None where that is the output itself."""
        if not self.reviews or self._given_out is None:
            return None
        if self._unjudged:
            return self._unjudged
        return _review.left(self._ended.review if self._ended is not None else None, self._sent)

    def denied(self) -> Denied:
        """Return the refusal as an error."""
        return Denied(
            self.outcome,
            self.reason,
            self.retry_after,
            matched_rule=self.matched_rule,
            decision_id=self.decision_id,
            signal=self.signal,
            approval=self.approval,
            answer=self,
        )

    async def _end(
        self,
        status: str | None,
        output: Any,
        tokens: int | None,
        spent: Mapping[str, str | int | float | Decimal] | None,
    ) -> messages.Ended | None:
        """Report how the call ended. Only the first end counts."""
        if self._given_out is None:
            self._given_out = self.output if output is None else output  # judged or not: see shown
        if not self.admitted or self._settled or self._elsewhere():
            return self._ended
        ended = body = self._session.end_body(self.id, status or self.status or "succeeded")
        self._settled = True
        lease, keeper = self._lease, self._live.keeper
        if lease is None:
            try:
                body = self._filled(ended, tokens, spent)
            finally:
                count = self._session.count_later(self._body, body, self._live.ids.draw())
                keeper.later(count, _FAIL_OPEN_KEPT, frees=False)
            return None
        if not keeper.ended(lease):
            return None
        try:
            body = self._filled(ended, tokens, spent)
            alone = "begin" in body  # what several calls are sent in has less room
            answer = await self._core._perform(
                Operation("CallService/EndCall", body, self.id, batched="" if alone else "end", farewell=True)
            )
        except BaseException as e:
            if isinstance(e, Rejected):  # of what came of it
                body = ended
            if body is ended or isinstance(e, NoAnswer) or not isinstance(e, Exception):
                keeper.later(ending(body), max(lease.ttl, 1.0))
            raise
        finally:
            keeper.forget(lease)
        self._session.looked(body, answer)
        self._ended = decode(messages.Ended, answer)
        if self._ended.outcome not in ("ENDED", "ALREADY_ENDED"):
            raise LeaseLost(f"govnode: call {self.id}: {self._ended.reason or self._ended.outcome.lower()}")
        return self._ended

    def _filled(
        self, ended: dict[str, Any], tokens: int | None, spent: Mapping[str, str | int | float | Decimal] | None
    ) -> dict[str, Any]:
        """Return the end of the call with what came of it. What cannot be written of that raises."""
        body = dict(ended)
        if self.reviews and self._given_out is not None:
            self._put_reviewed(body, self._given_out)
        else:
            self._session.put_output(body, self._given_out)
        if (used := self.tokens if tokens is None else tokens) is not None:
            body["tokens"] = str(used)
        if costs := spent or self.spent:
            body["spent"] = budgets_of(costs)
        return body

    def _put_reviewed(self, body: dict[str, Any], output: Any) -> None:
        """Put an output that rules look at into the end of the call, with the call that they look at too."""
        self._sent = body["output"] = _review.judged(output)
        body["begin"] = {name: value for name, value in self._body.items() if name != "wait"}
        if len(json.dumps(body)) > _review.MOST_REVIEWED:
            del body["output"], body["begin"]
            self._unjudged = _review.TOO_LARGE

    async def _leave(self, kind: type[BaseException] | None) -> None:
        """End the call as its block was left."""
        status = self.status
        if status is None and kind is not None:
            status = "failed" if issubclass(kind, Exception) else "cancelled"
        try:
            await self._end(status, None, None, None)
        except NoAnswer as e:
            log.warning("govnode: the end of call %s is not known to have arrived: %s", self.id, e)
        except Exception as e:
            if kind is None:
                raise  # else it would hide why the block was left
            log.warning("govnode: call %s did not end as it should: %s", self.id, e)


class HeldSlot(Held):
    """A share of a pool, held under a lease."""

    def __init__(
        self, core: Leases, live: Live, pool: str, id: str, answer: dict[str, Any], lease: Lease | None
    ) -> None:
        super().__init__(core, live, id, answer, lease)
        self.pool = pool

    @property
    def token(self) -> int:
        """The fencing token: unique and rising in its pool for ever."""
        return int(self._answer.get("token", 0))

    def denied(self) -> Denied:
        """Return the refusal as an error."""
        return Denied(self.outcome, self.reason or f"pool {self.pool}", self.retry_after, answer=self)

    async def _release(self) -> None:
        """Give the slot back. Once or several times makes no difference."""
        lease, keeper = self._lease, self._live.keeper
        if lease is None or self._elsewhere() or not keeper.ended(lease):
            return
        body = lease.release(self._live.name)["release"]
        try:
            answer = await self._core._perform(
                Operation("SlotService/ReleaseSlot", body, self.id, batched="release", farewell=True)
            )
        except BaseException as e:
            if isinstance(e, NoAnswer) or not isinstance(e, Exception):
                keeper.later(releasing(body), max(lease.ttl, 1.0))
            raise
        finally:
            keeper.forget(lease)
        outcome = word(answer["outcome"])
        if outcome not in ("RELEASED", "ALREADY_RELEASED"):
            raise LeaseLost(f"govnode: slot {self.id} of {self.pool}: {answer.get('reason') or outcome.lower()}")

    async def _leave(self, kind: type[BaseException] | None) -> None:
        try:
            await self._release()
        except NoAnswer as e:
            log.warning("govnode: slot %s of %s is not known to have been released: %s", self.id, self.pool, e)
        except Exception as e:
            if kind is None:
                raise  # else it would hide why the block was left
            log.warning("govnode: slot %s of %s was not released as it should be: %s", self.id, self.pool, e)


class LazySession:
    """A session by its id. It is created by the first call, if it says for whom and under which policy."""

    def __init__(
        self,
        core: Leases,
        session_id: str | None,
        agent: str | None,
        policy: str | None,
        idle_ttl: float | None,
        parent: str | None,
        attributes: Mapping[str, str] | None,
        secret: bool | str = False,
    ) -> None:
        if session_id is None and policy is None:
            raise ValueError("govnode: session: name one that exists, or a policy for a new one")
        if (agent is None) != (policy is None):
            raise ValueError("govnode: session: agent and policy go together")
        self._core = core
        #: The id of the session; drawn if it was not given.
        self.id = session_id or core.live().ids.draw()
        self._create: dict[str, Any] | None = None
        if policy is not None:
            self._create = {"sessionId": self.id, "agentId": agent, "policy": policy_ref(policy)}
            if idle_ttl is not None:
                self._create["idleTtl"] = duration(idle_ttl)
            if parent is not None:
                self._create["parentSessionId"] = parent
            if attributes:
                self._create["attributes"] = dict(attributes)
        if secret is True and self._create is None:
            raise ValueError("govnode: session: secret: it is drawn for a new session; give that of this one as a text")
        #: What calls of the session bring, for another process that makes some; empty if they need none.
        self.secret = secrets.token_urlsafe(32) if secret is True else secret or ""
        if self._create is not None and self.secret:
            digest = hashlib.sha256(self.secret.encode()).digest()
            self._create["sessionTokenSha256"] = base64.b64encode(digest).decode()
        self._created = self._create is None
        self._compared = 0  # outputs that were sent and not compared: from two on none is sent any more

    async def _open(self) -> None:
        """Create the session, unless it is there."""
        if not self._created and self._create is not None:
            await self._core._send("SessionService/CreateSession", self._create, self.id)
            self._created = True

    def end_body(self, call_id: str, status: str) -> dict[str, Any]:
        """Return the request that ends a call."""
        return self.known({"sessionId": self.id, "callId": call_id, "status": f"STATUS_{status.upper()}"})

    def known(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put the secret of the session into a request of one of its calls."""
        if self.secret:
            body["sessionToken"] = self.secret
        return body

    @property
    def compares(self) -> bool:
        """Whether the policy compares outputs, as far as this is known."""
        return self._compared < 2

    def put_output(self, body: dict[str, Any], output: Any) -> None:
        """Put the output of a call into its end, if it is compared."""
        if output is None or not self.compares:
            return
        text = output if isinstance(output, str) else str(output)
        content = text.encode("utf-8", "replace")
        body["output"] = text if len(content) <= MOST_OUTPUT else "sha256:" + hashlib.sha256(content).hexdigest()

    def looked(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        """Note whether an output was compared: the first of a session never is, all others where the policy asks."""
        if "output" in body:
            self._compared = 0 if "drift" in answer else self._compared + 1

    def count_later(self, begin: dict[str, Any], end: dict[str, Any], anew: str) -> Callable[[Ask], None]:
        """Return what counts a call that was allowed without an answer."""
        return counting(lambda: None if self._created else self._create, begin, end, anew)


class Leases(Operations):
    """A client that begins calls and takes slots."""

    async def _begin(
        self,
        session: LazySession,
        make: type[C],
        tool: str,
        arguments: Mapping[str, Any] | str | None,
        options: CallOptions,
    ) -> C:
        check_options("call", options, CallOptions)
        live = self.live()
        wait = options.get("wait", 10.0)
        ttl = options.get("ttl", _TTL)
        body = session.known(begin_body(session.id, tool, arguments, options))
        chosen = options.get("call_id")
        op = Operation("CallService/BeginCall", body, chosen or live.ids.draw(), batched="begin")
        op.id_field = "" if chosen else "callId"
        body["callId"] = op.id
        try:
            await session._open()

            def gone() -> Callable[[Ask], None]:  # with the id that it had last
                within = self.config.attempt_timeout + wait
                return abandoning(session.known({"sessionId": session.id, "callId": op.id}), within)

            answer = await self._admit(op, wait, gone, options.get("approval_wait"), self._opens)
        except NoAnswer as e:
            if not self._opens(e):
                raise
            log.warning("govnode: call %s of %s is allowed without an answer (fail_open): %s", op.id, tool, e)
            return make(self, live, body, {"outcome": "FAIL_OPEN", "reason": str(e)}, None, session, arguments)
        lease = None
        if answer["outcome"] == "OUTCOME_ADMITTED":
            grant = answer["grants"][0]
            lease = Lease("", session.id, op.id, int(grant["token"]), ttl, session.secret)
            if on_lost := options.get("on_lost"):
                lease.told.append(on_lost)
            if on_signal := options.get("on_signal"):
                lease.braked.append(on_signal)
            _keep(live, lease, op.sent, seconds(grant["ttl"]))
        return make(self, live, body, answer, lease, session, arguments)

    def _opens(self, e: BaseException) -> bool:
        """Report whether a call that ends so is allowed: no node was there that could object."""
        if not self.config.fail_open or self._live.closed:
            return False
        return isinstance(e, NoAnswer) and not (isinstance(e, Unknown) and e.answered)

    async def _acquire(self, make: type[S], pool: str, options: SlotOptions) -> S:
        check_options("slot", options, SlotOptions)
        live = self.live()
        wait = options.get("wait", 10.0)
        ttl = options.get("ttl", _TTL)
        body: dict[str, Any] = {"pool": pool, "client": live.name, "weight": options.get("weight", 1)}
        body["priority"] = options.get("priority", 0)
        body["label"] = options.get("label", "")
        body["ttl"] = duration(ttl)
        if "max_hold" in options:
            body["maxHold"] = duration(options["max_hold"])
        chosen = options.get("slot_id")
        op = Operation("SlotService/AcquireSlot", body, chosen or live.ids.draw(), batched="acquire")
        op.id_field = "" if chosen else "slotId"
        body["slotId"] = op.id
        answer = await self._admit(op, wait, lambda: abandoning_slot(body))
        lease = None
        if answer["outcome"] == "OUTCOME_ADMITTED":
            lease = Lease(pool, "", op.id, int(answer["token"]), ttl)
            if on_lost := options.get("on_lost"):
                lease.told.append(on_lost)
            _keep(live, lease, op.sent, seconds(answer["ttl"]))
        held = make(self, live, pool, op.id, answer, lease)
        if lease is None:
            raise held.denied()
        return held

    async def _admit(
        self,
        op: Operation,
        wait: float,
        abandon: Callable[[], Callable[[Ask], None]],
        approval_wait: float | None = None,
        opens: Callable[[BaseException], bool] = lambda _: False,
    ) -> dict[str, Any]:
        """Ask for a lease until there is an answer that stands.

        It is asked for together with what else is under way. Who has to wait is told so, and asks again alone, with
        the same id: a request that carries many is answered as a whole.

        A lease counts from the sending of its request; one that was granted after a wait would be half over by that
        count. So a request that was long under way is sent again, and the answer to that says what is left.
        """
        live = self.live()
        batched, start = op.batched, time.monotonic()
        until = start + wait
        decided = until if approval_wait is None else start + approval_wait
        admitted = asked = False
        try:
            if wait > 0:
                op.body["wait"] = duration(wait)
            answer = await self._perform(op)
            for _ in range(REPEATS):
                outcome = answer["outcome"]
                now = time.monotonic()
                admitted = outcome == "OUTCOME_ADMITTED"
                asked = asked or outcome == "OUTCOME_APPROVAL_REQUIRED"
                if admitted:
                    if now - op.sent <= _left(answer) / 3:
                        return answer
                    op.touched = UNCERTAIN
                    op.batched, op.wait = batched, 0.0
                elif outcome == "OUTCOME_APPROVAL_REQUIRED" and now < decided:
                    op.batched, op.wait = "", decided - now
                elif outcome == "OUTCOME_QUEUED" or (outcome == "OUTCOME_STOPPED" and now < until):
                    op.batched, op.wait = "", max(until - now, 0.001)  # it stands in the queue, however late it is
                elif outcome == "OUTCOME_CANCELLED" and op.id_field:
                    # A node took a connection that broke for a caller that gave up.
                    op.id = op.body[op.id_field] = live.ids.draw()
                    op.touched = UNTOUCHED
                    op.batched, op.wait = "", max(until - now, 0.0)
                else:
                    return answer
                answer = await self._perform(op)
            return answer
        except BaseException as e:
            if isinstance(e, NoAnswer):
                e.pending = asked
            unknown = admitted or isinstance(e, Unknown) or not isinstance(e, Exception)
            if op.id_field and unknown and not opens(e):  # what is done all the same is ended by whoever does it
                live.keeper.later(abandon(), 60.0)
            raise


C = TypeVar("C", bound=HeldCall)
S = TypeVar("S", bound=HeldSlot)


def _keep(live: Live, lease: Lease, sent: float, left: float) -> None:
    """Have a lease renewed that was granted. A client that was closed meanwhile gives it back: RuntimeError."""
    if live.keeper.hold(lease, sent, left):
        return
    back = lease.release(live.name)
    live.keeper.later(ending(back["end"]) if "end" in back else releasing(back["release"]), lease.ttl)
    raise closed()


def _left(answer: dict[str, Any]) -> float:
    grants = answer.get("grants")
    return seconds(grants[0]["ttl"] if grants else answer["ttl"])
