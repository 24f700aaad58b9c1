"""A call is begun, judged, done and ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import eventually, put

import govnode


def test_admitted_call_is_ended_by_its_block(session: govnode.Session) -> None:
    with session.call("shell", {"command": "ls"}) as call:
        assert call.admitted
        assert call.arguments == {"command": "ls"}
        assert call.state == "held"
        assert call.grants[0].pool == "policy/plain"
        assert call.decision.allowed
        assert session.read().open_calls[0].call_id == call.id
    assert call.state == "ended"
    assert call.ended is not None
    assert call.ended.outcome == "ENDED"
    info = session.read()
    assert (info.executions, info.failures, info.open_calls) == (1, 0, ())


def test_denial_says_why(session: govnode.Session) -> None:
    with pytest.raises(govnode.Denied) as denied, session.call("shell", {"command": "rm -rf /"}):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "DENIED_BY_POLICY"
    assert "rm -rf" in denied.value.reason
    assert denied.value.decision_id
    assert denied.value.retry_after == 0
    answer = session.begin("shell", {"command": "rm -rf /"})
    assert (answer.admitted, answer.outcome, answer.state) == (False, "DENIED_BY_POLICY", "not held")
    assert answer.end() is None


def test_denial_says_when_to_come_again(client: govnode.Client, session: govnode.Session) -> None:
    client.put_rate("slow", 1, 3600)
    with session.call("t", rates=["slow"]):
        pass
    with pytest.raises(govnode.Denied) as denied, session.call("t", rates={"slow": 1}, wait=0):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "RATE_LIMITED"
    assert 3500 < denied.value.retry_after <= 3600


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "failures"), (KeyboardInterrupt, "cancelled"), (GeneratorExit, "cancelled")]
)
def test_block_that_is_left_by_an_error_ends_its_call(
    session: govnode.Session, error: type[BaseException], status: str
) -> None:
    with pytest.raises(error), session.call("t"):
        raise error
    info = session.read()
    assert (info.open_calls, info.executions) == ((), 1)
    assert info.failures == (1 if status == "failures" else 0)


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("came", [{"output": Unwritable()}, {"spent": {"b": object()}}])
def test_call_ends_though_what_came_of_it_cannot_be_written(session: govnode.Session, came: dict[str, Any]) -> None:
    call = session.begin("t")
    with pytest.raises((RuntimeError, ArithmeticError)):
        call.end(**came)
    assert call.state == "ended"
    eventually(lambda: session.read().open_calls == ())


def left_by(session: govnode.Session, error: BaseException | None) -> None:
    with session.call("t") as call:
        call.spent = {"no such budget": 1}
        if error is not None:
            raise error


def test_end_that_fails_hides_no_error(session: govnode.Session) -> None:
    for error in (ValueError("this"), KeyboardInterrupt("this")):
        with pytest.raises(type(error), match="this"):
            left_by(session, error)
    with pytest.raises(govnode.Rejected):
        left_by(session, None)
    eventually(lambda: session.read().open_calls == ())


def test_closed_generator_ends_its_call(session: govnode.Session) -> None:
    def stream() -> Iterator[int]:
        with session.call("t"):
            yield 1
            yield 2

    items = stream()
    assert next(items) == 1
    assert len(session.read().open_calls) == 1
    items.close()  # type: ignore[attr-defined]
    assert session.read().open_calls == ()


def test_same_id_is_the_same_call(session: govnode.Session) -> None:
    first = session.begin("t", call_id="c1")
    again = session.begin("t", call_id="c1")
    assert first.grants[0].token == again.grants[0].token
    assert first.end() is not None
    assert session.read().attempts == 1
    assert session.begin("t", call_id="c1").outcome == "ALREADY_ENDED"
    with pytest.raises(govnode.Rejected) as rejected:
        session.begin("other", call_id="c1")
    assert rejected.value.reason == "ID_REUSED"


def test_arguments_keep_order_and_numbers(session: govnode.Session) -> None:
    class Odd:
        def __str__(self) -> str:
            return "rm -rf"

    exact = {"z": 2**70, "a": 1.0, 3: None, "nan": float("nan"), "list": [{"y": True, "x": (1, 2)}]}
    call = session.begin("t", exact)  # type: ignore[arg-type]
    assert call._body["argumentsJson"] == (
        '{"z":1180591620717411303424,"a":1.0,"3":null,"nan":"nan","list":[{"y":true,"x":[1,2]}]}'
    )
    assert session.begin("t", {"odd": Odd()}).outcome == "DENIED_BY_POLICY"
    circular: dict[str, object] = {}
    circular["self"] = circular
    assert session.begin("t", circular).admitted


def test_too_large_arguments_are_denied(session: govnode.Session) -> None:
    with pytest.raises(govnode.Denied, match="more than 192 KiB") as denied:
        session.begin("t", {"text": "x" * (200 << 10)})
    assert denied.value.outcome == "ARGUMENTS_TOO_LARGE"
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(govnode.Denied, match="nested"):
        session.begin("t", {"deep": deep})


def test_objection_to_a_request(client: govnode.Client, session: govnode.Session) -> None:
    with pytest.raises(govnode.Rejected) as rejected:
        session.begin("t", ttl=0.5)
    assert rejected.value.code == "invalid_argument"
    with pytest.raises(govnode.Rejected) as rejected:
        client.session("nobody").begin("t")
    assert rejected.value.reason == "NOT_FOUND"
    with pytest.raises(govnode.Rejected):
        client.session(agent="a", policy="missing").begin("t")
    with pytest.raises(ValueError, match="policy"):
        client.session()
    with pytest.raises(TypeError, match="no option max_hodl"):
        session.begin("t", max_hodl=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option tll"):
        client.acquire("p", tll=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="cancel_on_lost"):
        client.slot("p", cancel_on_lost=True)


def test_outputs_are_sent_where_the_policy_compares_them(client: govnode.Client) -> None:
    put(client, "drifting", drift=0.5)
    session = client.session(agent="a", policy="drifting")
    scores = []
    for output in ("the same text", "the same text", "zzz", "y" * (70 << 10)):
        with session.call("t") as call:
            call.output = output
        assert call.ended is not None
        scores.append(call.ended.drift.score if call.ended.drift else None)
    assert scores[:3] == [None, 0.0, 1.0]
    assert scores[3] is not None
    assert scores[3] > 0.5  # the hash of a long output has little in common with anything
    put(client, "not-drifting")
    session = client.session(agent="a", policy="not-drifting")
    for _ in range(3):
        with session.call("t") as call:
            call.output = "text"
    assert session._core._compared == 2


def test_parallel_calls_never_pass_the_limit(client: govnode.Client) -> None:
    put(client, "narrow", concurrent=3)
    session = client.session(agent="a", policy="narrow")
    lock, at_work, most, done = threading.Lock(), 0, 0, 0

    def work() -> None:
        nonlocal at_work, most, done
        for _ in range(5):
            with session.call("t", wait=60):
                with lock:
                    at_work += 1
                    most = max(most, at_work)
                session.read()
                with lock:
                    at_work -= 1
                    done += 1

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 3
    assert done == 160
    held = [session.begin("t") for _ in range(3)]
    assert [c.admitted for c in held] == [True] * 3
    assert session.begin("t", wait=0).outcome == "CONCURRENCY_LIMIT"
    for call in held:
        call.end()


def test_async_calls(address: str, session: govnode.Session) -> None:
    async def main() -> None:
        async with govnode.AsyncClient(address) as client:
            put_ = await client.put_policy("name: async\nmax_concurrent: 3\nbackpressure_threshold: 3\n")
            assert put_.name == "async"
            shared = client.session(agent="a", policy="async")
            at_work = most = 0

            async def work() -> None:
                nonlocal at_work, most
                async with shared.call("t", {"x": 1}, wait=60) as call:
                    at_work += 1
                    most = max(most, at_work)
                    await shared.read()
                    at_work -= 1
                    call.output = "y"

            await asyncio.gather(*[work() for _ in range(9)])
            assert most <= 3
            assert (await shared.read()).executions == 9
            with pytest.raises(ValueError, match="this"):
                async with shared.call("t"):
                    raise ValueError("this")
            with pytest.raises(govnode.Denied):
                async with shared.call("t"):
                    pytest.fail("more than ten calls")
            call = await client.session(session.id).begin("t")
            assert not call.admitted or await call.end() is not None

    session.open()
    asyncio.run(main())


def test_cancelled_task_ends_its_call(address: str, session: govnode.Session) -> None:
    session.open()

    async def main() -> None:
        client = govnode.AsyncClient(address)
        here = client.session(session.id)
        began = asyncio.Event()

        async def work() -> None:
            async with here.call("t"):
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await began.wait()
        assert len((await here.read()).open_calls) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await here.read()).open_calls == ()
        await client.close()

    asyncio.run(main())


def test_two_loops_one_after_another(address: str, session: govnode.Session) -> None:
    session.open()
    client = govnode.AsyncClient(address)
    here = client.session(session.id)

    async def once() -> int:
        async with here.call("t"):
            pass
        return (await here.read()).executions

    assert [asyncio.run(once()), asyncio.run(once())] == [1, 2]
    asyncio.run(client.close())
