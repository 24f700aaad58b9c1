"""Answers that are lost, nodes that are down: what is not known is said to be unknown, and nothing is admitted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from conftest import eventually, put
from faults import Proxy, Scripted

import govnode
from govnode import _core, testing
from govnode._core import judge
from govnode._transport import Lost, NotSent, run
from govnode.adapters import Gate


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    with Proxy(address) as proxy:
        yield proxy


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


@pytest.mark.parametrize(
    ("code", "reason", "after", "fate", "pause"),
    [
        ("resource_exhausted", "OVERLOADED", 0.0, "not applied", 1.0),
        ("resource_exhausted", "QUOTA_EXCEEDED", 2.0, "not applied", 2.0),  # so much a second
        ("resource_exhausted", "QUOTA_EXCEEDED", 0.0, "final", 0.0),  # so much at all
        ("resource_exhausted", "TOO_MANY_OPEN", 0.0, "final", 0.0),
        ("unavailable", "NOT_APPLIED", 0.0, "not applied", 0.0),
        ("unavailable", "OUTCOME_UNKNOWN", 0.0, "unknown", 0.0),
    ],
)
def test_what_refusals_mean(code: str, reason: str, after: float, fate: str, pause: float) -> None:
    failure = judge(code, reason, "", {}, after)
    assert (failure.fate, failure.after) == (fate, pause)


ADMITTED = {"begin": {"outcome": "OUTCOME_ADMITTED", "grants": [{"pool": "p", "token": "1", "ttl": "30s"}]}}
NOT_APPLIED = {"error": {"code": "unavailable", "reason": "NOT_APPLIED", "message": "there is no leader"}}


class Results:
    """Answers batches with one result after another, and every later one with the last."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self.results = list(results)
        self.at: list[float] = []
        self.asked: list[dict[str, Any]] = []

    def __call__(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        if method != "BatchCalls":
            return {}
        answers = []
        for op in body["operations"]:
            self.at.append(time.monotonic())
            self.asked.append(op)
            answers.append(self.results.pop(0) if len(self.results) > 1 else self.results[0])
        return {"results": answers}


def test_operation_of_a_batch_is_sent_again_when_the_node_says() -> None:
    busy = {"code": "resource_exhausted", "reason": "QUOTA_EXCEEDED", "message": "?"}
    answers = Results({"error": {**busy, "retryAfter": "0.3s"}}, ADMITTED)  # so much a second
    with Scripted(answers) as node, govnode.Client(node.address) as client:
        assert client.session("s").begin("t").admitted
        assert answers.at[1] - answers.at[0] >= 0.3
        assert answers.asked[0]["begin"]["callId"] == answers.asked[1]["begin"]["callId"]
    used_up = Results({"error": busy})  # so much at all
    with Scripted(used_up) as node, govnode.Client(node.address) as client, pytest.raises(govnode.Rejected):
        client.session("s").begin("t")
    assert len(used_up.asked) == 1


def test_what_a_node_could_not_do_in_a_batch_another_one_is_asked_for() -> None:
    cut_off = Results(NOT_APPLIED)
    with (
        Scripted(cut_off) as node,
        Scripted(Results(ADMITTED)) as well,
        govnode.Client([node.address, well.address], timeout=5) as client,
    ):
        assert client.session("s").begin("t").admitted
    assert len(cut_off.asked) == 1


def test_close_gives_back_again_what_was_not_given_back() -> None:
    ended = {"end": {"outcome": "OUTCOME_ENDED"}}
    answers = Results(ADMITTED, ADMITTED, ended, NOT_APPLIED, ended)
    with Scripted(answers) as node, govnode.Client(node.address) as client:
        calls = [client.session("s").begin("t").id for _ in range(2)]
    assert [op["end"]["callId"] for op in answers.asked[2:]] == [*calls, calls[1]]


def test_close_says_what_was_not_given_back(caplog: pytest.LogCaptureFixture) -> None:
    gone = {"error": {"code": "not_found", "reason": "NOT_FOUND", "message": "it is gone"}}
    objection = {"error": {"code": "permission_denied", "reason": "PERMISSION_DENIED", "message": "not you"}}
    answers = Results(ADMITTED, ADMITTED, ADMITTED, {}, gone, objection, {"end": {"outcome": "OUTCOME_ENDED"}})
    with Scripted(answers) as node, govnode.Client(node.address) as client:
        calls = [client.session("s").begin("t").id for _ in range(3)]
    assert [op["end"]["callId"] for op in answers.asked[3:]] == [*calls, calls[0]]  # no answer is none
    assert [r.getMessage() for r in caplog.records] == [
        "govnode: 1 leases are not known to have been given back: not you"
    ]


def test_close_says_what_was_left_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Scripted(Results({}), lambda method: 503 if method == "CancelCall" else 200) as node,
        govnode.Client(node.address, timeout=0.3) as client,
        pytest.raises(govnode.Unknown),
    ):
        client.session("s").begin("t")
    assert "1 things left to do behind callers are not known to be done: 503" in caplog.text


def test_call_that_is_held_when_its_caller_has_gone_is_ended_later() -> None:
    known, ended = threading.Event(), threading.Event()
    asked: list[str] = []

    def answer(method: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(method)
        if method == "BatchCalls":
            return {"results": [{}]}  # no answer
        if method == "EndCall":
            ended.set()
            return {"outcome": "OUTCOME_ENDED"}
        if method == "CancelCall":
            return {"outcome": "OUTCOME_ADMITTED"} if known.is_set() else {}
        return {}

    def status(method: str) -> int:
        return 404 if method == "CancelCall" and not known.is_set() else 200

    with Scripted(answer, status) as node, govnode.Client(node.address, timeout=0.3) as client:
        with pytest.raises(govnode.Unknown):
            client.session("s").begin("t")
        eventually(lambda: "CancelCall" in asked)
        time.sleep(0.1)
        assert not ended.is_set()
        known.set()
        assert ended.wait(10)


class Grants:
    """Grants what it is asked for, the first time when it is told to."""

    def __init__(self) -> None:
        self.asked, self.until = threading.Event(), threading.Event()
        self.back: queue.Queue[tuple[str, str]] = queue.Queue()  # what is given back

    def __call__(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        slot = {"outcome": "OUTCOME_ADMITTED", "token": "7", "ttl": "30s"}
        if method == "BatchCalls":
            self.asked.set()
            self.until.wait(30)
            return {"results": [{"acquire": slot} if "acquire" in op else ADMITTED for op in body["operations"]]}
        if method in ("EndCall", "ReleaseSlot"):
            self.back.put((method, body.get("callId") or body["slotId"]))
        return slot


@pytest.mark.parametrize("method", ["ReleaseSlot", "EndCall"])
def test_what_comes_when_the_client_is_closed_is_given_back(method: str) -> None:
    errors: queue.Queue[BaseException] = queue.Queue()
    late = Grants()
    with Scripted(late) as node:
        client = govnode.AsyncClient(node.address, fail_open=True)

        async def work() -> None:
            call = method == "EndCall"
            with pytest.raises(RuntimeError, match="the client is closed") as raised:
                await (
                    client.session("s").begin("t", call_id="mine") if call else client.acquire("gpu", slot_id="mine")
                )
            errors.put(raised.value)

        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        assert late.asked.wait(30)
        asyncio.run(client.close())  # on another loop, so that the answer is heard
        late.until.set()
        assert errors.get(timeout=30)
        assert late.back.get(timeout=30) == (method, "mine")
        thread.join()


@pytest.mark.parametrize("method", ["ReleaseSlot", "EndCall"])
def test_what_comes_unheard_when_the_client_is_closed_is_given_back(method: str) -> None:
    errors: queue.Queue[BaseException] = queue.Queue()
    late = Grants()
    with Scripted(late) as node:
        client = govnode.Client(node.address, fail_open=True)

        def work() -> None:
            with pytest.raises(govnode.Unknown, match="the client is closed") as raised:
                client.session("s").begin("t") if method == "EndCall" else client.acquire("gpu")
            errors.put(raised.value)

        thread = threading.Thread(target=work)
        thread.start()
        assert late.asked.wait(30)
        client.close()  # its connections too
        late.until.set()
        unknown = errors.get(timeout=30)
        assert isinstance(unknown, govnode.Unknown)
        assert late.back.get(timeout=30) == (method, unknown.id)
        thread.join()


@pytest.mark.parametrize(("back", "cancelled"), [("ReleaseSlot", False), ("ReleaseSlot", True), ("EndCall", True)])
def test_task_that_waits_when_its_client_is_left(back: str, cancelled: bool) -> None:
    late = Grants()

    async def main(address: str) -> None:
        async with govnode.AsyncClient(address) as client:
            gate = Gate(client.session("s"), wait=60)
            asks: Any = gate.aenter("t", {}) if back == "EndCall" else client.acquire("gpu", wait=60)
            waits = asyncio.create_task(asks)
            await asyncio.to_thread(late.asked.wait, 30)
        if cancelled:
            waits.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else govnode.Unknown):
            await waits

    with Scripted(late) as node:
        asyncio.run(main(node.address))
        late.until.set()
        assert late.back.get(timeout=30)[0] == back


def test_answer_that_comes_late_leaves_nobody_in_the_queue() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def answer(method: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append((method, body))
        if method != "BatchCalls":
            return {"outcome": "OUTCOME_WAIT_TIMEOUT"}
        time.sleep(0.2)
        return {"results": [{"acquire": {"outcome": "OUTCOME_QUEUED"}}]}

    with Scripted(answer) as node, govnode.Client(node.address) as client, pytest.raises(govnode.Denied) as denied:
        client.acquire("gpu", wait=0.05)
    assert denied.value.outcome == "WAIT_TIMEOUT"
    assert [body["wait"] for method, body in asked if method == "AcquireSlot"] == ["0.001s"]


def test_wait_at_a_rate_that_a_node_gave_up_goes_on() -> None:
    asked: list[dict[str, Any]] = []

    def answer(method: str, body: dict[str, Any]) -> dict[str, Any]:
        if method != "TakeRate":
            return {}
        asked.append(body)
        return {"outcome": "OUTCOME_CANCELLED" if len(asked) % 2 else "OUTCOME_ADMITTED"}

    with Scripted(answer) as node, govnode.Client(node.address) as client:
        client.take_rate("r", wait=30)
        assert asked[0]["requestId"] != asked[1]["requestId"]
        assert float(asked[1]["wait"].rstrip("s")) < float(asked[0]["wait"].rstrip("s")) <= 30
        with pytest.raises(govnode.Denied) as denied:  # of an id of the caller that is the answer
            client.take_rate("r", wait=30, request_id="r1")
        assert (denied.value.outcome, len(asked)) == ("CANCELLED", 3)


def test_people_who_were_asked_before_a_stop_are_not_asked_anew_for_an_outage() -> None:
    asked = {"outcome": "OUTCOME_APPROVAL_REQUIRED", "approval": {"id": "a"}}
    begun: list[str] = []

    def answer(method: str, body: dict[str, Any]) -> dict[str, Any]:
        if method == "Status":
            return {}
        begun.append(method)
        return {"results": [{"begin": asked}]} if method == "BatchCalls" else {"outcome": "OUTCOME_STOPPED"}

    def status(method: str) -> int:
        return 200 if len(begun) < 3 else 503

    with Scripted(answer, status) as node, govnode.Client(node.address, timeout=0.3) as client:
        with pytest.raises(govnode.NoAnswer) as raised:
            client.session("s").begin("t", call_id="c", approval_wait=5)
        assert begun[:3] == ["BatchCalls", "BeginCall", "BeginCall"]
        assert raised.value.pending


def test_lost_answer_is_asked_for_again_with_the_same_id(client: govnode.Client, proxy: Proxy) -> None:
    through = govnode.Client(proxy.address)
    proxy.once("lose", "Increment")
    assert through.increment("counted-once") == Decimal(1)
    bodies = [json.loads(b) for m, b in proxy.seen if m == "Increment"]
    assert len(bodies) == 2
    assert bodies[0]["requestId"] == bodies[1]["requestId"]
    put(client, "plain")
    session = through.session(agent="a", policy="plain")
    for method, fault in (("BatchCalls", "lose"), ("BatchCalls", "refuse"), ("CreateSession", "lose")):
        proxy.once(fault, method)
        with session.call("t"):
            pass
    info = session.read()
    assert (info.attempts, info.executions, info.open_calls) == (3, 3, ())
    through.close()


def test_what_is_no_answer_of_a_node_is_not_taken_for_one(client: govnode.Client, proxy: Proxy) -> None:
    with govnode.Client(proxy.address, timeout=2) as through:
        proxy.once("answer", "Increment")  # by something on the way, which knows nothing of this
        assert through.increment("answered", request_id="r1") == Decimal(1)
        proxy.always("answer")
        for ask in (lambda: through.increment("answered"), lambda: through.delete_policy("none")):
            with pytest.raises(govnode.Unknown, match="not from a govnode"):
                ask()
        with pytest.raises(govnode.NoAnswer, match="not from a govnode"):
            through.get("answered")


def test_error_tells_what_each_node_said(nowhere: str) -> None:
    with (
        Scripted(Results(NOT_APPLIED)) as node,
        govnode.Client([node.address, nowhere], timeout=0.5) as client,
        pytest.raises(govnode.NoAnswer) as nobody,
    ):
        client.session("s").begin("t")
    assert "there is no leader" in str(nobody.value)
    assert "ConnectError" in str(nobody.value)


def test_error_tells_nothing_of_others_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "jitter", lambda attempt: 0.0)  # they are together in their second request too
    known: set[str] = set()

    def answer(method: str, body: dict[str, Any]) -> dict[str, Any]:
        ids = {op["begin"]["callId"] for op in body["operations"]}
        again = ids <= known
        known.update(ids)
        debug = {"reason": "NOT_APPLIED", **({"retryDelay": "60s"} if again else {})}
        text = "still no leader" if again else "there is no leader"
        return {"code": "unavailable", "message": text, "details": [{"debug": debug}]}

    async def main() -> None:
        with Scripted(answer, lambda _: 503) as node:
            async with govnode.AsyncClient(node.address) as client:
                session = client.session("s")
                errors = await asyncio.gather(*[session.begin("t") for _ in range(8)], return_exceptions=True)
        assert [str(e).count("before that") for e in errors] == [1] * 8

    asyncio.run(main())


def test_stream_that_breaks_off_is_told(client: govnode.Client, proxy: Proxy) -> None:
    with govnode.Client(proxy.address) as through:
        proxy.always("answer")
        with pytest.raises(govnode.NoAnswer, match="broke off"):
            list(through.events())


def test_unknown_is_said_to_be_unknown(client: govnode.Client, proxy: Proxy) -> None:
    with govnode.Client(proxy.address, timeout=0.5) as through:
        proxy.always("lose")
        with pytest.raises(govnode.Unknown) as unknown:
            through.increment("maybe", request_id="r1")
        assert (unknown.value.operation, unknown.value.id) == ("CounterService/Increment", "r1")
        assert unknown.value.outcome == "OUTCOME_UNKNOWN"
        proxy.always("")
        assert through.increment("maybe", request_id="r1") == Decimal(1)
        assert client.increment("maybe") == Decimal(2)


def test_nothing_sent_is_no_answer(nowhere: str) -> None:
    with govnode.Client(nowhere, timeout=0.3) as client:
        with pytest.raises(govnode.NoAnswer) as no_answer:
            client.increment("k")
        assert not isinstance(no_answer.value, govnode.Unknown)
        with pytest.raises(govnode.NoAnswer):
            client.get("k")


def test_service_down_denies(nowhere: str) -> None:
    with govnode.Client(nowhere, timeout=0.3) as client:
        session = client.session("s", agent="a", policy="p")
        with pytest.raises(govnode.Denied) as denied, session.call("t"):
            pytest.fail("the block was entered")
        assert denied.value.outcome == "NO_ANSWER"
        with pytest.raises(govnode.Denied), client.slot("gpu"):
            pytest.fail("the block was entered")

    async def main() -> None:
        async with govnode.AsyncClient(nowhere, timeout=0.3) as client:
            with pytest.raises(govnode.Denied):
                async with client.session("s", agent="a", policy="p").call("t"):
                    pytest.fail("the block was entered")

    asyncio.run(main())


def test_hanging_node_denies_in_time(proxy: Proxy) -> None:
    with govnode.Client(proxy.address, timeout=0.5, attempt_timeout=0.2) as client:
        proxy.always("hang")
        with pytest.raises(govnode.Unknown):
            client.session("s").begin("t", wait=0)


@pytest.mark.parametrize("answers", [True, False])
def test_node_that_answers_others_is_asked_again_soon(client: govnode.Client, proxy: Proxy, answers: bool) -> None:
    put(client, "plain")
    with govnode.Client(proxy.address, attempt_timeout=3.0) as through:
        session = through.session(agent="a", policy="plain")
        session.open()
        node = through._core.live().routes.pick()
        proxy.once("hang", "BatchCalls")  # a guardrail takes long
        begun = threading.Thread(target=session.begin, args=("t",))
        begun.start()
        eventually(lambda: any(method == "BatchCalls" for method, _ in proxy.seen))
        if answers:
            through.get("k")
        begun.join()
        assert (node.shunned == 0.0) == answers


def test_who_looks_who_is_in_the_cluster_has_no_more_time(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.fault = lambda method, body: "hang" if method == "Status" else ""
    timeouts: list[tuple[str, float]] = []
    with govnode.Client(proxy.address, timeout=0.5) as through:
        transport = through._core._io(through._core.live()).transport
        post = transport.post

        async def noted(url: str, body: bytes, timeout: float) -> Any:
            timeouts.append((url.rpartition("/")[2], timeout))
            return await post(url, body, timeout)

        monkeypatch.setattr(transport, "post", noted)
        assert through.get("k") is None
    assert [method for method, _ in timeouts] == ["Get", "Status"]
    assert timeouts[1][1] <= timeouts[0][1]


def test_call_of_unknown_outcome_is_given_back(client: govnode.Client, proxy: Proxy) -> None:
    put(client, "plain")
    session = client.session(agent="a", policy="plain")
    session.open()
    with govnode.Client(proxy.address, timeout=0.5) as through:
        proxy.always("lose")
        with pytest.raises(govnode.Unknown):
            through.session(session.id).begin("t")
        assert len(session.read().open_calls) == 1
        proxy.always("")
        eventually(lambda: session.read().open_calls == ())


def test_end_that_did_not_arrive_is_sent_later(
    client: govnode.Client, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    put(client, "plain")
    session = client.session(agent="a", policy="plain")
    session.open()
    with govnode.Client(proxy.address, timeout=0.5) as through:
        with session_of(through, session).call("t"):
            proxy.always("refuse")
        assert "not known to have arrived" in caplog.text
        assert len(session.read().open_calls) == 1
        proxy.always("")
        eventually(lambda: session.read().open_calls == ())
        info = session.read()
        assert (info.executions, info.failures) == (1, 0)


def session_of(client: govnode.Client, session: govnode.Session) -> govnode.Session:
    return client.session(session.id)


def test_fail_open_allows_says_so_and_counts(
    client: govnode.Client, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    put(client, "plain")
    with govnode.Client(proxy.address, timeout=0.5, fail_open=True) as through:
        session = through.session(agent="a", policy="plain")
        proxy.always("refuse")
        with caplog.at_level(logging.WARNING), session.call("t", {"x": 1}, context={"why": "test"}) as call:
            assert call.failed_open
            assert call.arguments == {"x": 1}
        assert "fail_open" in caplog.text
        proxy.always("lose")  # the first request arrives after all
        with session.call("t") as call:
            assert call.failed_open
        proxy.always("")
        eventually(lambda: client.get_session(session.id).executions == 2)
        info = client.get_session(session.id)
        assert (info.attempts, info.open_calls) == (2, ())
        begun = [json.loads(b) for m, b in proxy.seen if m == "BeginCall"]
        assert {"why": "test", "fail_open": True} in [json.loads(b["contextJson"]) for b in begun]
        with pytest.raises(govnode.Denied), session.call("t", {"c": "rm -rf"}):  # an answer is an answer
            pytest.fail("the block was entered")


def lose_begins(method: str, body: bytes) -> str:
    """Lose the answers to callers, and hand on what is done behind them."""
    return "lose" if method == "BatchCalls" else ""


def test_fail_open_counts_what_came_of_a_call_that_was_admitted_unheard(client: govnode.Client, proxy: Proxy) -> None:
    put(client, "plain")
    session = client.session(agent="a", policy="plain")
    session.open()
    proxy.fault = lose_begins
    with govnode.Client(proxy.address, timeout=0.5, fail_open=True) as through:
        with session_of(through, session).call("t", tokens=5) as call:
            assert call.failed_open
            call.status, call.tokens = "failed", 7
        eventually(lambda: session.read().executions == 1)
        info = session.read()
        assert (info.attempts, info.failures, info.tokens_used, info.open_calls) == (1, 1, 7, ())


@pytest.mark.parametrize("wait", [60.0, 0.1])
def test_fail_open_counts_a_call_that_waited_unheard(client: govnode.Client, proxy: Proxy, wait: float) -> None:
    put(client, "single", concurrent=1)
    session = client.session(agent="a", policy="single")
    holder = session.begin("holder")
    proxy.fault = lose_begins
    with govnode.Client(proxy.address, timeout=0.5, fail_open=True) as through:
        with session_of(through, session).call("t", wait=wait, tokens=5) as call:
            assert call.failed_open
            waits = [call.id] if wait > 1 else []  # or that is over
            eventually(lambda: [c.call_id for c in session.read().open_calls if c.waiting] == waits)
            holder.end()
            call.status, call.tokens = "failed", 7
        eventually(lambda: session.read().executions == 2)
        info = session.read()
        assert (info.failures, info.tokens_used, info.open_calls) == (1, 7, ())


@pytest.mark.parametrize("heard", [True, False])
def test_fail_open_says_what_is_not_counted(
    client: govnode.Client, proxy: Proxy, caplog: pytest.LogCaptureFixture, heard: bool
) -> None:
    put(client, "single", concurrent=1)
    session = client.session(agent="a", policy="single")
    with session.call("holder"), govnode.Client(proxy.address, timeout=0.5, fail_open=True) as through:
        proxy.fault = (lambda method, _: "refuse" if method == "BatchCalls" else "") if heard else lose_begins
        with session_of(through, session).call("t", call_id="c1", wait=0) as call:
            assert call.failed_open
        eventually(lambda: f"call c1 of session {session.id} was allowed without an answer, and is not" in caplog.text)
        info = session.read()
        assert (info.attempts, info.executions) == (2, 0)
    assert session.read().executions == 1


def test_fail_open_allows_nothing_to_which_a_node_objects() -> None:
    objection = {"error": {"code": "resource_exhausted", "reason": "QUOTA_EXCEEDED", "message": "used up"}}
    with (
        Scripted(Results({}, objection)) as node,
        govnode.Client(node.address, fail_open=True) as client,
        pytest.raises(govnode.Unknown, match="used up"),
    ):
        client.session("s").begin("t")


def test_clients_follow_the_leader_and_survive_it() -> None:
    with testing.node(3) as address, govnode.Client(address) as client:
        put(client, "plain")
        session = client.session(agent="a", policy="plain")
        with session.call("t"):
            pass
        status = client.status()
        leader = next(p.api_address for p in status.peers if p.node == status.leader)
        os.kill(address.pids[address.all.index(leader)], signal.SIGKILL)
        for _ in range(20):
            with session.call("t"):
                pass
        info = session.read()
        assert (info.attempts, info.executions) == (21, 21)


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms name, and have, other options")
def test_connections_notice_when_their_machine_is_gone(address: str) -> None:
    """Within 5 seconds: that cannot be seen without cutting a network."""

    def options(connection: Any) -> list[int]:
        found = connection._connection._network_stream.get_extra_info("socket")
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        alive = found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [alive, *(found.getsockopt(socket.IPPROTO_TCP, name) for name in names)]

    async def main() -> None:
        async with govnode.AsyncClient(address) as client:
            await client.status()
            transport: Any = client._io(client.live()).transport
            assert [options(c) for c in transport._http._pool.connections] == [[1, 2, 1, 3, 5000]]

    asyncio.run(main())
    with govnode.Client(address) as client:
        client.status()
        transport: Any = client._core._io(client._core.live()).transport
        assert [options(c) for c in transport._http._pool.connections] == [[1, 2, 1, 3, 5000]]


def test_time_that_ran_out_before_a_request_is_no_answer(proxy: Proxy) -> None:
    with govnode.Client(proxy.address) as through:
        through.status()  # it is connected
        threads = through._core.live().threads
        assert threads is not None
        with pytest.raises((Lost, NotSent)):
            run(threads.transport.post(f"http://{proxy.address}/govnode.v1.ClusterService/GetStatus", b"{}", -0.1))
