"""What all adapters share, without a framework."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import eventually
from faults import Proxy

import govnode
from govnode import testing
from govnode.adapters import Gate, Killed, PolicyViolationError


def test_arguments_are_checked(session: govnode.Session) -> None:
    with pytest.raises(ValueError, match="on_denied"):
        Gate(session, on_denied="shout")
    with pytest.raises(ValueError, match="wait"):
        Gate(session, approval_wait=-1)


def test_a_call_passes_and_ends(session: govnode.Session) -> None:
    gate = Gate(session)
    passage = gate.enter("shell", {"command": "ls"}, call_id="c", run_id="r")
    assert passage.admitted
    assert passage.run(lambda: passage.arguments["command"]) == "ls"
    assert passage.call is not None
    assert passage.call.id == "r/c"
    assert session.read().executions == 1


def test_denial_in_words(client: govnode.Client, session: govnode.Session) -> None:
    gate = Gate(session, wait=0)
    assert "rm -rf" in gate.enter("shell", {"command": "rm -rf /"}).text
    client.put_rate("once", 1, 3600)
    gate.enter("t", {}, options={"rates": ["once"]}).run(lambda: None)
    text = gate.enter("t", {}, options={"rates": ["once"]}).text
    assert "try again after 3.6e+03 s" in text or "try again after 36" in text


def test_second_pass_of_an_id_is_another_call(session: govnode.Session) -> None:
    ids = []
    for gate in (Gate(session), Gate(session)):  # the second does not know of the first, as after a restart
        for _ in range(2):
            passage = gate.enter("t", {}, call_id="c", run_id="r")
            passage.run(lambda: None)
            assert passage.call is not None
            ids.append(passage.call.id)
    assert ids == ["r/c", "r/c:2", "r/c:3", "r/c:4"]
    assert session.read().executions == 4


def test_ids_that_the_service_would_not_take(session: govnode.Session) -> None:
    gate = Gate(session)
    for id in ("a b", "x" * 500, "größe", ""):
        passage = gate.enter("t", {}, call_id=id)
        assert passage.admitted, passage.text
        passage.run(lambda: None)
    assert session.read().executions == 4


def test_a_hook_that_is_met_twice_lets_through(session: govnode.Session) -> None:
    gate, call = Gate(session), object()
    outer = gate.enter("t", {}, call_id="c", run_id="r", known_by=call)

    def inner() -> str:
        again = gate.enter("t", {}, call_id="c", run_id="r", known_by=call)
        assert again.through
        assert again.admitted
        # The model of an agent in an agent may give the same id to a call of its own.
        assert "rm -rf" in gate.enter("t", {"command": "rm -rf"}, call_id="c", run_id="r", known_by=object()).text
        return again.run(lambda: "once")

    assert outer.run(inner) == "once"
    info = session.read()
    assert (info.attempts, info.executions) == (2, 1)


class InterruptError(Exception):
    """Leaves a call open, which goes on when it comes again."""


def interrupt() -> None:
    raise InterruptError


def test_interrupted_call_goes_on(session: govnode.Session) -> None:
    gate = Gate(session)
    with pytest.raises(InterruptError):
        gate.enter("t", {}, call_id="c", run_id="r").run(interrupt, interrupts=(InterruptError,))
    assert [c.call_id for c in session.read().open_calls] == ["r/c"]
    gate.enter("t", {}, call_id="c", run_id="r").run(lambda: None)
    info = session.read()
    assert (info.attempts, info.executions, info.open_calls) == (1, 1, ())


def test_waits_for_people_and_for_slots_are_two_times(client: govnode.Client) -> None:
    client.put_policy(ASKS)
    session = client.session(agent="anna", policy="asks")
    gate = Gate(session, wait=600)
    denied = gate.enter("mail", {}, call_id="c", run_id="r")  # at once, although it would wait for a slot
    assert denied.denied is not None
    assert denied.denied.outcome == "APPROVAL_REQUIRED"
    approval = client.list_approvals(session_id=session.id)[0]
    assert approval.id in denied.text
    client.approve(approval.id, approver="carla")
    admitted = gate.enter("mail", {}, call_id="c", run_id="r")  # the same call comes again
    assert admitted.admitted
    admitted.run(lambda: None)


ASKS = "name: asks\nallowed_tools: [mail]\nrequire_human_approval: true\napproval: {timeout: 60s}\n"

#: What a framework says of a call: the id that the model gave it, or nothing.
named = pytest.mark.parametrize("call", [{"call_id": "c", "run_id": "r"}, {}], ids=["by its id", "by what it is"])


@pytest.fixture(scope="module")
def alone() -> Iterator[testing.Address]:
    """A node without others: a client would learn of those, and go around the proxy."""
    with testing.node() as address:
        yield address


@named
@pytest.mark.parametrize("on_denied", ["tell", "raise"])
def test_an_outage_leaves_an_approval_as_it_is(alone: testing.Address, call: dict[str, Any], on_denied: str) -> None:
    """What people say meanwhile holds when the call comes after it."""
    with (
        govnode.Client(alone) as client,
        Proxy(alone) as proxy,
        govnode.Client(proxy.address, timeout=0.5) as through,
    ):
        client.put_policy(ASKS)
        session = client.session(agent="anna", policy="asks")
        session.open()
        gate = Gate(through.session(session.id), on_denied=on_denied)

        def enter() -> str:
            try:
                passage = gate.enter("mail", {"to": "bob"}, **call)
            except PolicyViolationError as e:
                return "no answer" if isinstance(e.denied, govnode.NoAnswer) else e.denied.outcome
            if passage.denied is None:
                return passage.run(lambda: "sent")
            return "no answer" if isinstance(passage.denied, govnode.NoAnswer) else passage.denied.outcome

        assert enter() == "APPROVAL_REQUIRED"
        proxy.always("refuse")
        for _ in range(2):
            assert enter() == "no answer"
        (asked,) = client.list_approvals(session_id=session.id)
        client.approve(asked.id, approver="carla")
        proxy.always("")
        assert enter() == "sent"
        assert [a.state for a in client.list_approvals(session_id=session.id)] == ["USED"]


def test_an_outage_while_people_are_waited_for(alone: testing.Address) -> None:
    with (
        govnode.Client(alone) as client,
        Proxy(alone) as proxy,
        govnode.Client(proxy.address, timeout=0.5) as through,
    ):
        client.put_policy(ASKS)
        session = client.session(agent="anna", policy="asks")
        session.open()
        gate = Gate(through.session(session.id), approval_wait=5)
        begun: list[str] = []

        def fault(method: str, body: bytes) -> str:
            """Let through the request by which people are asked, and not those that wait for them."""
            begun.append(method)
            return "" if len(begun) == 1 else "refuse"

        proxy.fault = fault
        assert isinstance(gate.enter("mail", {"to": "bob"}).denied, govnode.NoAnswer)
        (asked,) = client.list_approvals(session_id=session.id)
        client.approve(asked.id, approver="carla")
        proxy.always("")
        gate.enter("mail", {"to": "bob"}).run(lambda: None)
        assert [a.state for a in client.list_approvals(session_id=session.id)] == ["USED"]


@named
def test_equal_calls_that_wait_for_people_are_two(
    client: govnode.Client, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A yes to either of them lets one of them through, when it comes again."""
    client.put_policy(ASKS)
    session = client.session(agent="anna", policy="asks")
    gate = Gate(session)
    both, begin = threading.Barrier(2), govnode.AsyncSession.begin

    async def together(*args: Any, **options: Any) -> govnode.AsyncCall:
        both.wait(20)
        return await begin(*args, **options)

    def enter() -> str:
        passage = gate.enter("mail", {"to": "bob"}, **call)
        if passage.denied is not None and passage.denied.approval is not None:
            return passage.denied.approval.id
        return passage.run(lambda: passage.text or "sent")

    with ThreadPoolExecutor(2) as pool, monkeypatch.context() as under_way:
        under_way.setattr(govnode.AsyncSession, "begin", together)
        first, second = pool.map(lambda _: enter(), range(2))
    for yes in (first, second):
        client.approve(yes, approver="carla")
        assert "sent" in [enter() for _ in range(2)]
    states = [a.state for a in client.list_approvals(session_id=session.id)]
    assert states.count("USED") == 2


@pytest.fixture
def two(client: govnode.Client) -> Gate:
    """The gate of two sessions: in "free" mail may be sent, in "asks" people are asked before."""
    client.put_policy(ASKS)
    client.put_policy("name: free\nallowed_tools: [mail]\n")
    sessions = {name: client.session(agent="anna", policy=name) for name in ("asks", "free")}
    return Gate(lambda name: sessions[name])


def test_an_approval_is_not_lost_to_a_call_of_another_session(client: govnode.Client, two: Gate) -> None:
    """The models of both call their first call the same."""
    denied = two.enter("mail", {}, call_id="call_0", conversation="asks").denied
    assert denied is not None
    assert denied.approval is not None
    two.enter("mail", {}, call_id="call_0", conversation="free").run(lambda: None)
    client.approve(denied.approval.id, approver="carla")
    two.enter("mail", {}, call_id="call_0", conversation="asks").run(lambda: None)


def test_a_call_does_not_go_on_that_another_session_has_interrupted(two: Gate) -> None:
    with pytest.raises(InterruptError):
        two.enter("mail", {}, call_id="call_0", conversation="free").run(interrupt, interrupts=(InterruptError,))
    other = two.enter("mail", {}, call_id="call_0", conversation="asks")
    assert other.denied is not None
    assert other.denied.outcome == "APPROVAL_REQUIRED"
    two.enter("mail", {}, call_id="call_0", conversation="free").run(lambda: None)


def test_no_work_is_done_for_a_call_that_is_denied(session: govnode.Session) -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("async")

    passage = Gate(session).enter("shell", {"command": "rm -rf /"})
    with pytest.raises(govnode.Denied, match="rm -rf"):
        passage.run(lambda: done.append("sync"))
    with pytest.raises(govnode.Denied, match="rm -rf"):
        asyncio.run(passage.arun(work))
    assert done == []


def test_stop_holds_and_continue_lets_go_on(client: govnode.Client, session: govnode.Session) -> None:
    session.open()
    client.signal("STOP", session_id=session.id)
    gate = Gate(session, wait=60)
    done = threading.Event()

    def work() -> None:
        gate.enter("t", {}).run(done.set)

    thread = threading.Thread(target=work)
    thread.start()
    refused = Gate(session, wait=0).enter("t", {}, call_id="c", run_id="r")
    assert refused.denied is not None
    assert refused.denied.outcome == "STOPPED"
    assert not done.is_set()
    client.signal("CONTINUE", session_id=session.id)
    assert done.wait(30)
    thread.join()


def test_kill_is_known_to_the_gate(client: govnode.Client, session: govnode.Session) -> None:
    gate = Gate(session)
    session.open()
    assert gate.killed() is None
    client.signal("KILL", session_id=session.id, reason="enough")
    denied = gate.enter("t", {})
    assert denied.killed
    assert "enough" in denied.text
    assert gate.killed() is not None
    with pytest.raises(Killed):
        Gate(session, on_denied="raise").enter("t", {})


def test_denial_as_an_error(session: govnode.Session) -> None:
    with pytest.raises(PolicyViolationError, match="rm -rf") as raised:
        Gate(session, on_denied="raise").enter("shell", {"command": "rm -rf"})
    assert raised.value.denied.outcome == "DENIED_BY_POLICY"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_tool_that_raises_gives_its_slot_back(session: govnode.Session, error: type[BaseException]) -> None:
    def work() -> None:
        raise error

    gate = Gate(session)
    with pytest.raises(error):
        gate.enter("t", {}).run(work)
    info = session.read()
    assert info.open_calls == ()
    assert info.failures == (1 if error is ValueError else 0)


def test_call_that_failed_open_and_was_given_up_counts_what_it_took(address: str, session: govnode.Session) -> None:
    session.open()
    with Proxy(address) as proxy, govnode.Client(proxy.address, timeout=0.5, fail_open=True) as through:
        proxy.always("refuse")
        passage = Gate(through.session(session.id)).enter("t", {}, options={"tokens": 5})
        assert passage.admitted
        passage.end_behind("cancelled")
        proxy.always("")
        eventually(lambda: session.read().executions == 1)
    assert session.read().tokens_used == 5  # how many it used is not known


def test_begin_that_is_cancelled_leaves_nothing(client: govnode.Client) -> None:
    client.put_policy("name: one\nmax_concurrent: 1\nbackpressure_threshold: 1\n")
    session = client.session(agent="tester", policy="one")
    gate = Gate(session, wait=60)

    async def scenario() -> None:
        first = await gate.aenter("t", {})
        second = asyncio.create_task(gate.aenter("t", {}))
        await asyncio.to_thread(eventually, lambda: client.get_pool("policy/one").waiting == 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await first.arun(nothing)
        await asyncio.to_thread(eventually, lambda: idle(client))

    async def nothing() -> None:
        pass

    def idle(client: govnode.Client) -> bool:
        pool: Any = client.get_pool("policy/one")
        return bool(pool.waiting == 0 and pool.in_use == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_end_of_a_call_tells_of_a_kill(client: govnode.Client, session: govnode.Session, mode: str) -> None:
    """Also of the last call of a run, behind which no other would hear of it."""
    gate = Gate(session)

    def work() -> None:
        client.signal("KILL", session_id=session.id, reason="enough")

    async def awork() -> None:
        work()

    if mode == "sync":
        gate.enter("shell", {}).run(work)
    else:

        async def scenario() -> None:
            await (await gate.aenter("shell", {})).arun(awork)

        asyncio.run(scenario())
    killed = gate.killed()
    assert killed is not None
    assert "enough" in killed.reason
