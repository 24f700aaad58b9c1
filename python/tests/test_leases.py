"""What is held is renewed, whatever its holder does, and a loss is told."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import eventually, put, renew_now
from faults import Proxy

import govnode
from govnode import _keeper, messages
from govnode._keeper import Keeper
from govnode._transport import Late, Lost


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    with Proxy(address) as proxy:
        yield proxy


def test_keeper_holds_through_a_tool_that_blocks_the_event_loop(client: govnode.Client, address: str) -> None:
    put(client, "plain")
    client.put_pool("blocked", 1)

    async def main() -> None:
        async with govnode.AsyncClient(address) as here:
            session = here.session(agent="a", policy="plain")
            async with session.call("t", ttl=3) as call, here.slot("blocked", ttl=3) as slot:
                time.sleep(10)  # noqa: ASYNC251 - the tool that is meant
                assert (call.state, slot.state) == ("held", "held")
                assert [s.token for s in client.list_slots("blocked").slots] == [slot.token]
                assert len(client.get_session(session.id).open_calls) == 1
            assert call.ended is not None
            assert call.ended.outcome == "ENDED"

    asyncio.run(main())


def test_thirty_two_threads_hold(client: govnode.Client) -> None:
    """One thread renews what they all hold."""
    client.put_pool("thirty-two", 32)
    together = threading.Barrier(33, timeout=60)
    slots: queue.Queue[govnode.Slot] = queue.Queue()

    def hold() -> None:
        with client.slot("thirty-two", ttl=60.0) as slot:  # for a slow machine too
            slots.put(slot)
            together.wait()
            together.wait()

    def deadlines() -> list[float]:
        return [slot._lease.deadline for slot in held if slot._lease is not None]

    threads = [threading.Thread(target=hold) for _ in range(32)]
    for thread in threads:
        thread.start()
    together.wait()
    held = [slots.get() for _ in threads]
    for _ in range(2):
        before = deadlines()
        renew_now(client, 60.0)
        eventually(lambda before=before: all(a > b for a, b in zip(deadlines(), before, strict=True)))  # type: ignore[misc]
    assert len(client.list_slots("thirty-two").slots) == 32
    assert sum(t.name == "govnode-keeper" for t in threading.enumerate()) <= 2  # and that of the test's own client
    together.wait()
    for thread in threads:
        thread.join()
    assert len({slot.token for slot in held}) == 32
    assert client.list_slots("thirty-two").slots == ()


def test_loss_is_told(client: govnode.Client, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    client.put_pool("lossy", 1)
    losses: queue.Queue[messages.Loss] = queue.Queue()
    with govnode.Client(proxy.address, on_lost=losses.put) as through:
        slot = through.acquire("lossy", ttl=1.0, on_lost=losses.put)
        slot.check()
        proxy.always("refuse")
        eventually(lambda: slot.state == "at risk")
        eventually(lambda: slot.state == "lost")
        with pytest.raises(govnode.LeaseLost):
            slot.check()
        for _ in range(2):
            loss = losses.get(timeout=10)
            assert (loss.pool, loss.id, loss.token) == ("lossy", slot.id, slot.token)
        proxy.always("")
        assert "lease lost" in caplog.text
        eventually(lambda: client.list_slots("lossy").slots == ())
        with pytest.raises(govnode.LeaseLost):
            slot.release()
        slot.release()


def test_renewal_that_hangs_keeps_short_leases_from_nothing(
    client: govnode.Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pool in ("long", "short"):
        client.put_pool(pool, 1)
    with govnode.Client(proxy.address) as through:
        through.acquire("long", ttl=3600.0)
        slot = through.acquire("short", ttl=12.0)
        renewed: queue.Queue[None] = queue.Queue()
        given: queue.Queue[float] = queue.Queue()
        ask = Keeper._ask

        def noted(keeper: Keeper, method: str, body: dict[str, Any], *more: Any) -> tuple[int, dict[str, Any]]:
            if body.get("ttl") == "3600s":
                given.put(more[0])
            return ask(keeper, method, body, *more)

        def fault(method: str, body: bytes) -> str:
            if method == "RenewSlots" and b'"short"' in body:
                renewed.put(None)
            return "hang" if method == "RenewSlots" and b'"long"' in body else ""

        proxy.fault = fault
        monkeypatch.setattr(Keeper, "_ask", noted)
        renew_now(through, 3600.0)
        for _ in range(2):
            assert given.get(timeout=30) <= 12.0 / 6  # so that it leaves time to renew the short one
            renew_now(through, 12.0)
            renewed.get(timeout=30)
        slot.check()


def test_loss_is_told_while_a_renewal_hangs(client: govnode.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put_pool("hanging", 1)
    losses: queue.Queue[messages.Loss] = queue.Queue()
    slot = client.acquire("hanging", ttl=1.0, on_lost=losses.put)
    until = threading.Event()

    def hang(*_: object) -> None:  # longer than its timeout
        until.wait()
        raise Lost("it hung")

    monkeypatch.setattr(client._core.live().keeper, "_ask", hang)
    try:
        assert losses.get(timeout=10).id == slot.id
    finally:
        until.set()


def test_renewal_of_which_nothing_is_known(
    client: govnode.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put_pool("unknown", 2)
    with govnode.Client(address) as here:
        losses: queue.Queue[messages.Loss] = queue.Queue()
        ill = here.acquire("unknown", ttl=30.0, on_lost=losses.put)
        well = here.acquire("unknown", ttl=30.0)
        assert ill._lease is not None
        assert well._lease is not None
        ask = Keeper._ask
        untold = threading.Event()
        untold.set()

        def cut(keeper: Keeper, method: str, body: dict[str, Any], *more: Any) -> tuple[int, dict[str, Any]]:
            status, answer = ask(keeper, method, body, *more)
            for result in answer.get("results", ()) if method.endswith("RenewSlots") else ():
                if untold.is_set() and result["slot"]["slotId"] == ill.id:
                    result.pop("outcome", None), result.pop("ttl", None)
            return status, answer

        monkeypatch.setattr(Keeper, "_ask", cut)
        renew_now(here, 30.0)
        eventually(lambda: ill.state == "at risk")
        assert well.state == "held"
        untold.clear()
        eventually(lambda: ill.state == "held")  # it is asked for again soon
        untold.set()
        renew_now(here, 30.0)
        eventually(lambda: ill.state == "at risk")
        deadlines = ill._lease.deadline, well._lease.deadline
        eventually(lambda: well._lease is not None and well._lease.deadline > deadlines[1])
        assert ill._lease.deadline == deadlines[0]
        keeper = here._core.live().keeper
        with keeper._changed:
            ill._lease.deadline = 0.0  # it has run out
            keeper._wake(keeper._watching, 0.0)
        assert losses.get(timeout=30).id == ill.id
        assert well.state == "held"


def test_all_that_one_turn_asks_has_one_time(client: govnode.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    now, left = [1.0], list[float]()
    monkeypatch.setattr(_keeper, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow:
        """Takes a second for each thing, and does not know the first token."""

        async def token(self, timeout: float) -> None:
            left.append(timeout)
            now[0] += 1

        async def post(self, url: str, content: bytes, timeout: float) -> Any:
            await self.token(timeout)
            if timeout <= 1:
                raise Late("there was no time")
            return SimpleNamespace(status=401 if len(left) == 2 else 200, leader="", content=b"{}")

        async def drawn(self, shown: bytes | None, timeout: float) -> bool:
            await self.token(timeout)
            return True

    live = client._core.live()
    live.keeper._transport = Slow()  # type: ignore[assignment]
    try:
        with pytest.raises(Late):
            live.keeper._ask("SlotService/ListPools", {}, 4.0)
        assert live.routes.pick().shunned == 0.0  # it was the token that took so long
        left.clear()
        assert live.keeper._ask("SlotService/ListPools", {}, 5.0) == (200, {})
        assert left == [5.0, 4.0, 3.0, 2.0]
    finally:
        live.keeper._transport = None


def test_slot_that_was_taken_away_is_lost(client: govnode.Client, address: str) -> None:
    client.put_pool("taken", 1)
    slot = client.acquire("taken", ttl=1.0)
    assert client.force_release("taken", slot.id, holder_client=client.name)
    eventually(lambda: slot.state == "lost")


def test_lost_slot_cancels_its_block(client: govnode.Client, address: str) -> None:
    client.put_pool("cancelled", 1)

    async def main() -> None:
        async with govnode.AsyncClient(address) as here:

            async def work() -> None:
                async with here.slot("cancelled", ttl=1.0, cancel_on_lost=True) as slot:
                    client.force_release("cancelled", slot.id, holder_client=here.name)
                    await asyncio.Event().wait()

            with pytest.raises(govnode.LeaseLost):
                await work()
            await asyncio.sleep(0)  # the task goes on

    asyncio.run(main())


def test_renewals_bring_signals(address: str, client: govnode.Client) -> None:
    put(client, "plain")
    signals: queue.Queue[tuple[str, str]] = queue.Queue()
    with govnode.Client(address, on_signal=lambda s, session: signals.put((s.signal, session))) as told:
        session = told.session(agent="a", policy="plain")
        own: queue.Queue[str] = queue.Queue()
        with session.call("t", ttl=1.0, on_signal=lambda s: own.put(s.signal)) as call:
            session.signal("STOP", reason="enough")
            assert signals.get(timeout=10) == ("STOP", session.id)
            assert own.get(timeout=10) == "STOP"
            assert call.signal is not None
            assert call.signal.reason == "enough"
            with pytest.raises(govnode.Denied) as denied:
                session.call("t", wait=0).__enter__()
            assert denied.value.outcome == "STOPPED"
            assert denied.value.signal is not None
            session.signal("CONTINUE")
            with session.call("t"):
                pass


def test_wait_goes_on_behind_a_stop(client: govnode.Client, session: govnode.Session) -> None:
    session.signal("STOP")
    entered = threading.Event()

    def work() -> None:
        with session.call("t", wait=60):
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: not client._core.live().threads.batch._all.waiting)  # type: ignore[union-attr]
    assert not entered.is_set()
    session.signal("CONTINUE")
    assert entered.wait(30)
    thread.join()


def test_close_gives_back(address: str, client: govnode.Client) -> None:
    put(client, "plain")
    client.put_pool("closed", 2)
    here = govnode.Client(address)
    session = here.session(agent="a", policy="plain")
    call, slot = session.begin("t"), here.acquire("closed")
    here.close()
    assert client.list_slots("closed").slots == ()
    assert client.get_session(session.id).open_calls == ()
    assert (call.state, slot.state) == ("ended", "ended")
    assert call.end() is None
    slot.release()
    with pytest.raises(RuntimeError, match="closed"):
        here.get("k")


HOLDS = """
import os, sys, govnode
client = govnode.Client(sys.argv[1])
slot = client.acquire("dying", ttl=1.0)
print(slot.token)
if sys.argv[2] == "kill":
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
"""


def test_end_of_the_process_gives_back(client: govnode.Client, address: str, python: Callable[..., str]) -> None:
    client.put_pool("dying", 1)
    assert int(python(HOLDS, address, "end"))
    assert client.list_slots("dying").slots == ()


def test_killed_process_gives_back_when_its_lease_ends(
    client: govnode.Client, address: str, python: Callable[..., str]
) -> None:
    client.put_pool("dying", 1)
    with pytest.raises(AssertionError):
        python(HOLDS, address, "kill")
    with client.slot("dying", wait=30):
        pass


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_dropped_gives_nothing_back_and_is_said(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    monkeypatch.setattr(_keeper, "MOST_JOBS", 4)
    busy, go_on, done = threading.Event(), threading.Event(), list[str]()

    def step(name: str) -> Callable[[_keeper.Ask], None]:
        def do(_: _keeper.Ask) -> None:
            if not answered:
                raise Lost("nobody answers")
            done.append(name)

        return do

    def first(ask: _keeper.Ask) -> None:  # so that all others are left to do
        busy.set()
        assert go_on.wait(30)
        step("first")(ask)

    with govnode.Client(address) as client:
        keeper = client._core.live().keeper
        keeper.later(first, 60)
        assert busy.wait(30)
        for name in ("end 0", "count 0", "end 1", "count 1", "end 2", "end 3", "end 4", "count 2"):
            keeper.later(step(name), 60, frees=name.startswith("end"))
        assert caplog.text.count("are dropped") == 1
        go_on.set()
        if answered:
            eventually(lambda: len(done) == 5)
            assert done == ["first", "end 1", "end 2", "end 3", "end 4"]
            assert "4 things left to do behind callers were dropped" in caplog.text
    if not answered:
        assert "9 things left to do behind callers are not known to be done" in caplog.text
    assert caplog.text.count("left to do behind callers") == 2
