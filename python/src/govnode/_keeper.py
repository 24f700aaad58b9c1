"""The leases that a client holds: one thread renews them, all together, until they are given back or lost.

It has connections of its own for event loops too: a tool that blocks the loop must not lose its slots. A second thread
tells of leases that run out, since a renewal may hang for longer than anybody reckons.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._transport import Lost, NoToken, NotSent, ThreadTransport, answer_of, message_of, run
from ._wire import dumps, duration
from .messages import Loss, Signal, decode, seconds

if TYPE_CHECKING:
    from ._core import Config, Failure
    from ._routes import Node, Routes
    from ._transport import Security

log = logging.getLogger("govnode")

RENEW_MOST = 256  # leases in one request
# Seconds that a renewal may take. It keeps others waiting, so while there are short leases it may take less.
_RENEWAL_MOST, _RENEWAL_LEAST = 5.0, 0.5
# The share of a lease that its holder gives up, so that its clock may run slower than the service's by as much.
_MARGIN = 0.01
_FAREWELL = 5.0  # seconds that it may take to give everything back
_JOB_TIMEOUT = 1.0
MOST_JOBS = 1000


class Lease:
    """What a slot and a call have in common: it is held for a TTL, renewed while its holder lives, and may be lost."""

    def __init__(self, pool: str, session_id: str, id: str, token: int, ttl: float, secret: str = "") -> None:
        self.pool = pool  # empty for a call
        self.session_id = session_id  # empty for a slot
        self._known = {"sessionToken": secret} if secret else {}
        self.id = id
        self.token = token
        self.ttl = ttl  # that renewals ask for
        self.deadline = 0.0
        self.state = "held"
        self.signal: Signal | None = None
        self.told: list[Callable[[Loss], None]] = []
        self.braked: list[Callable[[Signal], None]] = []
        self.keeper: Keeper | None = None

    def granted(self, sent: float, left: float) -> None:
        """Note until when it lasts: for its holder it runs from the sending of the request that was answered."""
        self.deadline = sent + left * (1 - _MARGIN)

    def now(self) -> str:
        """Return held, at risk, lost or ended."""
        if self.state in ("held", "at risk") and time.monotonic() >= self.deadline:
            return "lost"  # whether it has been noticed or not
        return self.state

    def ref(self) -> dict[str, Any]:
        """Name it for the service."""
        if self.session_id:
            return {"sessionId": self.session_id, "slotId": self.id, "token": str(self.token), **self._known}
        return {"pool": self.pool, "slotId": self.id, "token": str(self.token)}

    def release(self, client: str) -> dict[str, Any]:
        """Return the operation that gives it back."""
        if self.session_id:
            ended = {"sessionId": self.session_id, "callId": self.id, "status": "STATUS_CANCELLED"}
            return {"end": {**ended, **self._known}}
        released = {"pool": self.pool, "slotId": self.id, "client": client, "token": str(self.token)}
        return {"release": released}


class NotYet(Lost):
    """The node has answered, and may answer otherwise later."""


class Job:
    """Something to be done behind a caller that does not wait for it: steps, each a request."""

    def __init__(self, step: Callable[[Ask], None], until: float, frees: bool) -> None:
        self.step = step  # raises NotSent or Lost to be called again
        self.until = until
        self.frees = frees  # it gives back what others may wait for
        self.at = 0.0
        self.failures = 0


# Asks once: the method and the body; returns the status and the message.
Ask = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


class Rounds:
    """What a thread does again and again: it waits until the next turn is due, and takes it."""

    def __init__(self, name: str, due: Callable[[], float], turn: Callable[[], None]) -> None:
        self.name = name
        self.due = due
        self.turn = turn
        self.next = 0.0
        self.thread: threading.Thread | None = None


class Keeper:
    """Renews what a client holds, and does what is left to do behind its callers."""

    def __init__(self, config: Config, name: str, routes: Routes, security: Security) -> None:
        self._config = config
        self._name = name
        self._routes = routes
        self._security = security
        self._changed = threading.Condition()
        self._held: dict[int, Lease] = {}
        self._due: dict[float, float] = {}  # when leases of that TTL are renewed next
        self._jobs: deque[Job] = deque()
        self._dropped = 0  # jobs for which there was no room since one was done
        self._asking = Rounds("govnode-keeper", self._next_request, self._request)
        self._watching = Rounds("govnode-watch", self._next_end, self._lose_what_ran_out)
        self._closing = False
        self._leaving = False  # somebody does what is left to do
        self._transport: ThreadTransport | None = None

    # For those who hold.

    def hold(self, lease: Lease, sent: float, left: float) -> bool:
        """Begin to renew a lease that was granted, and report whether anything is renewed any more."""
        lease.granted(sent, left)
        lease.keeper = self
        with self._changed:
            if self._closing:
                return False
            self._held[id(lease)] = lease
            due = min(sent + left / 3, self._due.get(lease.ttl, float("inf")))
            self._due[lease.ttl] = due
            self._wake(self._asking, due)
            self._wake(self._watching, lease.deadline)
            return True

    def ended(self, lease: Lease) -> bool:
        """Note that a lease is about to be given back, of which no loss is told any more, unless that was so before."""
        with self._changed:
            if lease.state == "ended":
                return False
            lease.state = "ended"
            return True

    def forget(self, lease: Lease) -> None:
        """Renew a lease no longer."""
        with self._changed:
            self._held.pop(id(lease), None)

    def later(self, step: Callable[[Ask], None], within: float, *, frees: bool = True) -> None:
        """Do something behind the caller, and try for so many seconds; once where nothing is renewed any more.

        Where there is too much to do, what ``frees`` nothing is dropped first.
        """
        first = False
        with self._changed:
            self._jobs.append(Job(step, time.monotonic() + within, frees))
            if len(self._jobs) > MOST_JOBS:
                self._jobs.remove(next((j for j in self._jobs if not j.frees), self._jobs[0]))
                first = self._dropped == 0
                self._dropped += 1
            if self._closing and not self._leaving:
                self._leaving = True
                # The process waits for it to end.
                until = time.monotonic() + _FAREWELL
                threading.Thread(target=self._do_the_rest, args=(until,), name="govnode-farewell").start()
            self._wake(self._asking, 0.0)
        if first:
            log.warning(
                "govnode: more than %d things are left to do behind callers: the oldest are dropped, and before others "
                "the calls that are to be counted",
                MOST_JOBS,
            )

    def _wake(self, rounds: Rounds, at: float) -> None:
        if self._closing:
            return
        if rounds.thread is None:
            rounds.thread = threading.Thread(target=self._run, args=(rounds,), name=rounds.name, daemon=True)
            rounds.thread.start()
        elif at < rounds.next:
            self._changed.notify_all()

    # The threads.

    def _run(self, rounds: Rounds) -> None:
        while True:
            with self._changed:
                while not self._closing:
                    rounds.next = rounds.due()
                    wait = rounds.next - time.monotonic()
                    if wait <= 0:
                        break
                    self._changed.wait(min(wait, 3600))
                if self._closing:
                    return
            try:
                rounds.turn()
            except Exception:  # whatever it is, the other leases must be renewed
                log.exception("govnode: the keeper of leases met what it did not expect")
                time.sleep(0.1)

    def _next_end(self) -> float:
        return min((x.deadline for x in self._held.values()), default=float("inf"))

    def _lose_what_ran_out(self) -> None:
        now = time.monotonic()
        with self._changed:
            over = [x for x in self._held.values() if now >= x.deadline]
        for lease in over:
            self._lose(lease, "no renewal was answered before the lease ran out")

    def _next_request(self) -> float:
        return min([float("inf"), *self._due.values(), *(j.at for j in self._jobs)])

    def _request(self) -> None:
        """Renew the leases of the TTL that is due first, if one is, and do one job."""
        with self._changed:
            now = time.monotonic()
            for ttl in set(self._due) - {x.ttl for x in self._held.values()}:
                del self._due[ttl]
            ttl, at = min(self._due.items(), key=lambda due: due[1], default=(0.0, float("inf")))
            if now >= at:
                self._due[ttl] = now + ttl / 3
                most = min(max(min(self._due) / 6, _RENEWAL_LEAST), ttl / 6, _RENEWAL_MOST)
                part = [x for x in self._held.values() if x.ttl == ttl]
        if now >= at:
            for i in range(0, len(part), RENEW_MOST):
                if some := [x for x in part[i : i + RENEW_MOST] if id(x) in self._held]:
                    self._renew(some, ttl, max(most, 0.1))
        self._work()

    def _ask(
        self, method: str, body: dict[str, Any], timeout: float, node: Node | None = None
    ) -> tuple[int, dict[str, Any]]:
        if self._transport is None:
            self._transport = ThreadTransport(self._security)
        if node is None:
            node = self._routes.pick()
        url, content = f"{node.url}/govnode.v1.{method}", dumps(body).encode()
        sent = time.monotonic()
        until = sent + timeout
        try:
            run(self._transport.token(timeout))
            shown = self._security.shown.header()
            reply = run(self._transport.post(url, content, until - time.monotonic()))
            if reply.status == 401:
                self._routes.answered(node, reply.leader)  # so it is there, though there may be no time for another one
                if run(self._transport.drawn(shown, until - time.monotonic())):
                    # A token that was drawn since is tried once.
                    reply = run(self._transport.post(url, content, until - time.monotonic()))
        except NoToken:
            raise
        except (NotSent, Lost) as e:
            self._routes.lost(node, sent, e)
            raise
        except Exception as e:  # of what draws or reads the token
            raise NotSent(f"{type(e).__name__}: {e}") from e
        if reply.status == 200:
            answer = answer_of(reply)
            self._routes.answered(node, reply.leader)
            return 200, answer
        if reply.status >= 500 or reply.status == 429:
            self._routes.failed(node, unreachable=False)
        return reply.status, message_of(reply.content)

    def _renew(self, part: list[Lease], ttl: float, timeout: float) -> None:
        """Send one request. If it is not answered the next turn tries again, soon.

        That has a pace of its own, and is outside of the budget, since what is not renewed is lost.
        """
        body = {"client": self._name, "ttl": duration(ttl), "slots": [x.ref() for x in part]}
        sent = time.monotonic()
        try:
            status, answer = self._ask("SlotService/RenewSlots", body, timeout)
            results = answer.get("results", ())
            problem = "" if status == 200 and len(results) == len(part) else str(answer.get("message", status))
        except (NotSent, Lost) as e:
            problem, results = str(e), ()
        if problem:
            self._at_risk(part, ttl, problem)
            return
        unknown = []
        for lease, result in zip(part, results, strict=True):
            outcome = result.get("outcome", "OUTCOME_UNSPECIFIED")
            if time.monotonic() >= lease.deadline:
                self._lose(lease, "the answer to its renewal came when it had run out")
            elif outcome == "OUTCOME_RENEWED":
                self._renewed(lease, sent, result)
            elif outcome == "OUTCOME_UNSPECIFIED":
                unknown.append(lease)
            else:
                self._lose(lease, f"the service holds it no longer: {outcome}")
        if unknown:
            self._at_risk(unknown, ttl, "the node could not tell what became of it")

    def _at_risk(self, part: list[Lease], ttl: float, problem: str) -> None:
        log.warning("govnode: %d leases at risk: a renewal failed: %s", len(part), problem)
        with self._changed:
            again = time.monotonic() + random.random() * min(ttl / 12, 1.0)
            self._due[ttl] = min(self._due.get(ttl, again), again)
            for lease in part:
                if lease.state == "held":
                    lease.state = "at risk"

    def _renewed(self, lease: Lease, sent: float, result: dict[str, Any]) -> None:
        signal = decode(Signal, result["signal"]) if "signal" in result else None
        with self._changed:
            if lease.state == "at risk":
                lease.state = "held"
            lease.granted(sent, seconds(result["ttl"]))
            before, lease.signal = lease.signal, signal
        if signal is None or (before is not None and before.signal == signal.signal):
            return
        for braked in lease.braked:
            _tell(braked, signal)
        if self._config.on_signal is not None:
            _tell(self._config.on_signal, signal, lease.session_id)

    def _lose(self, lease: Lease, reason: str) -> None:
        with self._changed:
            self._held.pop(id(lease), None)
            if lease.state in ("ended", "lost"):
                return  # it is being given back: that it is gone is what was wanted
            lease.state = "lost"
        loss = Loss(pool=lease.pool, session_id=lease.session_id, id=lease.id, token=lease.token, reason=reason)
        log.warning("govnode: lease lost: %s/%s: %s", loss.pool or loss.session_id, loss.id, reason)
        for told in [*lease.told, *([self._config.on_lost] if self._config.on_lost else [])]:
            _tell(told, loss)

    def _work(self) -> None:
        """Do one job that is due."""
        now = time.monotonic()
        with self._changed:
            job = next((j for j in self._jobs if j.at <= now), None)
            if job is None:
                return
            self._jobs.remove(job)
        try:
            job.step(lambda method, body: self._ask(method, body, _JOB_TIMEOUT))
        except (NotSent, Lost):
            now = time.monotonic()
            job.failures += 1
            job.at = now + random.random() * min(0.1 * 2**job.failures, 5.0)
            if job.at < job.until:
                with self._changed:
                    self._jobs.append(job)
            return
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("govnode: %d things left to do behind callers were dropped", dropped)

    # The end.

    def close(self) -> None:
        """Give back everything that is held, and do nothing any more. It takes 5 seconds at most."""
        until = time.monotonic() + _FAREWELL
        with self._changed:
            self._closing = self._leaving = True
            self._changed.notify_all()
            rest = [x for x in self._held.values() if x.state != "ended"]
            for lease in rest:
                lease.state = "ended"
            self._held.clear()
            thread = self._asking.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(until - time.monotonic(), 0.01))
            if thread.is_alive():
                _not_given_back(len(rest), "a request hangs")
                rest = []
        for i in range(0, len(rest), RENEW_MOST // 2):
            self._give_back(rest[i : i + RENEW_MOST // 2], until)
        self._do_the_rest(until)

    def _do_the_rest(self, until: float) -> None:
        """Do what is left to do behind callers, each thing once, and close the connections."""
        with self._changed:
            undone, self._dropped = self._dropped, 0
        why = "there was no room for them"
        while True:
            with self._changed:
                if not self._jobs:
                    self._leaving = False
                    if self._transport is not None:
                        self._transport.close()
                    break
                job = self._jobs.popleft()
            try:
                if time.monotonic() >= until:
                    raise NotSent("there was no time")
                job.step(lambda method, body: self._ask(method, body, _JOB_TIMEOUT))
            except Exception as e:  # whatever it is, the others are to be done
                undone, why = undone + 1, str(e)
        if undone:
            log.warning("govnode: %d things left to do behind callers are not known to be done: %s", undone, why)

    def _give_back(self, part: list[Lease], until: float) -> None:
        from ._core import Failure, result_of

        left = [{"tag": i, **x.release(self._name)} for i, x in enumerate(part)]
        refused: list[Failure] = []
        problem = "there was no time"
        while left and time.monotonic() < until:
            node, pause = self._routes.pick(), 0.05
            try:
                status, answer = self._ask("CallService/BatchCalls", {"operations": left}, _JOB_TIMEOUT, node)
            except (NotSent, Lost) as e:
                status, answer = 0, {"message": str(e)}
            if status == 200:
                rest: list[dict[str, Any]] = []
                results = [*answer.get("results", ()), *({} for _ in left)]  # one that is left out is no answer
                for op, result in zip(left, results, strict=False):
                    given = result_of(result)
                    if isinstance(given, Failure) and not given.again:
                        refused += [] if _gone(given) else [given]
                    elif isinstance(given, Exception):
                        rest.append(op)
                        problem, pause = str(given), max(pause, getattr(given, "after", 0.0))
                left = rest
                if not left:
                    break
                self._routes.failed(node, unreachable=False)
            else:
                problem = str(answer.get("message", status))
            time.sleep(max(min(pause, until - time.monotonic()), 0.0))
        if refused:
            _not_given_back(len(refused), refused[0].message)
        if left:
            _not_given_back(len(left), problem)


def _gone(failure: Failure) -> bool:
    """Tell whether an objection says that there is nothing to give back."""
    return failure.code == "not_found" or failure.reason in ("STALE_ID", "SESSION_CLOSED", "ID_REUSED")


def _not_given_back(count: int, why: str) -> None:
    """Say so: what is not given back lapses with its TTL."""
    if count:
        log.warning("govnode: %d leases are not known to have been given back: %s", count, why)


def _tell(told: Callable[..., None], *about: Any) -> None:
    """Call what a user gave, on a thread of its own: it may take long, and leases have to be renewed meanwhile."""

    def tell() -> None:
        try:
            told(*about)
        except Exception:
            log.exception("govnode: a callback failed")

    threading.Thread(target=tell, name="govnode-callback", daemon=True).start()
