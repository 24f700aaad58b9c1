"""Operations that are under way together share requests, whatever becomes of those who send them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from conftest import eventually

from govnode import _batch
from govnode._batch import MOST_OPERATIONS, Answer, Item, LoopBatch, ThreadBatch
from govnode._transport import Lost, NotSent, run


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is slow, however long this machine takes."""
    monkeypatch.setattr(_batch, "SLOW", 60.0)


class Node:
    """Answers requests when it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.open = threading.Event()
        self.lock = threading.Lock()
        self.fails: type[BaseException] | None = None

    async def send(self, items: list[Item]) -> list[Answer]:
        with self.lock:
            self.requests.append([i.text for i in items])
        self.open.wait()
        if self.fails is not None:
            raise self.fails
        return [{"text": i.text} for i in items]


def ask(batch: ThreadBatch, text: str, answers: dict[str, Any], within: float = 60.0) -> threading.Thread:
    def work() -> None:
        try:
            answers[text] = run(batch.ask(Item(text, time.monotonic() + within)))
        except BaseException as e:
            answers[text] = e

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_gathers_goes_together() -> None:
    node, answers = Node(), dict[str, Any]()
    batch = ThreadBatch(node.send)
    threads = [ask(batch, "a", answers)]
    eventually(lambda: len(node.requests) == 1)
    threads.append(ask(batch, "b", answers))
    eventually(lambda: len(node.requests) == 2)
    for i in range(2 * MOST_OPERATIONS):
        threads.append(ask(batch, str(i), answers))
    eventually(lambda: len(batch._all.waiting) == 2 * MOST_OPERATIONS)
    assert node.requests == [["a"], ["b"]]  # two at most are unanswered
    node.open.set()
    for thread in threads:
        thread.join()
    assert {k: v["text"] for k, v in answers.items()} == {k: k for k in answers}
    assert len(answers) == 2 * MOST_OPERATIONS + 2
    assert len(node.requests) == 4
    assert batch._all.unanswered == []


def test_what_cannot_be_sent_is_said() -> None:
    node, answers = Node(), dict[str, Any]()
    batch = ThreadBatch(node.send)
    threads = [ask(batch, "a", answers)]
    eventually(lambda: len(node.requests) == 1)
    threads += [ask(batch, "b", answers)]
    eventually(lambda: len(node.requests) == 2)
    ask(batch, "late", answers, within=0.01).join()
    assert isinstance(answers["late"], NotSent)
    threads += [ask(batch, "c", answers)]
    eventually(lambda: len(batch._all.waiting) == 1)
    node.fails = KeyboardInterrupt  # of the one that sends
    node.open.set()
    for thread in threads:
        thread.join()
    assert all(isinstance(answers[k], KeyboardInterrupt) for k in "abc")
    assert batch._all.unanswered == []


def test_those_who_are_sent_with_an_interrupted_one_learn_it() -> None:
    node, answers = Node(), dict[str, Any]()
    batch = ThreadBatch(node.send)
    threads = [ask(batch, "a", answers)]
    eventually(lambda: len(node.requests) == 1)
    threads += [ask(batch, "b", answers)]
    eventually(lambda: len(node.requests) == 2)
    threads += [ask(batch, t, answers) for t in "cd"]
    eventually(lambda: len(batch._all.waiting) == 2)
    node.fails = KeyboardInterrupt
    node.open.set()
    for thread in threads:
        thread.join()
    lost = [a for a in answers.values() if isinstance(a, Lost)]
    assert len(lost) == 1


def test_who_was_to_send_and_is_interrupted_lets_another_one() -> None:
    batch = ThreadBatch(Node().send)
    first, second, woken = Item("a", 0), Item("b", 0), threading.Event()
    second.wake = woken.set
    batch._all.waiting.extend([first, second])
    assert batch._lead() is first
    batch._give_up(first)
    assert woken.is_set()
    assert second.batch == [second]
    assert batch._all.unanswered == [[second]]


def test_slow_requests_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batch, "SLOW", 0.1)
    monkeypatch.setattr(_batch, "MOST_UNANSWERED", 4)
    node, answers = Node(), dict[str, Any]()
    batch = ThreadBatch(node.send)
    threads = []
    for text in "abcd":
        threads.append(ask(batch, text, answers))
        eventually(lambda t=text: [t] in node.requests)  # type: ignore[misc]
    ask(batch, "late", answers, within=0.5).join()
    assert isinstance(answers["late"], NotSent)
    node.open.set()
    for thread in threads:
        thread.join()
    assert batch._all.unanswered == []


def test_nobody_sends_for_longer_than_its_own_time() -> None:
    gates, requests, answers = [threading.Event() for _ in range(3)], list[list[str]](), dict[str, Any]()

    async def send(items: list[Item]) -> list[Answer]:
        requests.append([i.text for i in items])
        gates[len(requests) - 1].wait(20)
        return [{"text": i.text} for i in items]

    batch = ThreadBatch(send)
    threads = []
    for text in "ab":
        threads.append(ask(batch, text, answers))
        eventually(lambda t=text: [t] in requests)  # type: ignore[misc]
    threads += [ask(batch, "short", answers, within=5.0)]
    eventually(lambda: len(batch._all.waiting) == 1)
    threads += [ask(batch, "long", answers)]
    eventually(lambda: len(batch._all.waiting) == 2)
    gates[0].set()
    threads[2].join()
    assert requests[2] == ["short", "long"]
    assert isinstance(answers["short"], Lost)
    assert "long" not in answers
    for gate in gates:
        gate.set()
    for thread in threads:
        thread.join()
    assert answers["long"] == {"text": "long"}


def test_slow_requests_of_tasks_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_batch, "SLOW", 0.05)

    async def main() -> None:
        slow = asyncio.Event()

        async def send(items: list[Item]) -> list[Answer]:
            if "slow" in items[0].text:
                await slow.wait()
            return [{"text": i.text} for i in items]

        batch = LoopBatch(send)
        held = []
        for i in range(_batch.MOST_UNANSWERED):
            held.append(asyncio.create_task(batch.ask(Item(f"slow{i}", time.monotonic() + 60))))
            await asyncio.to_thread(eventually, lambda n=i: len(batch._all.unanswered) > n)  # type: ignore[misc]
            if i == 3:
                assert await batch.ask(Item("quick", time.monotonic() + 10)) == {"text": "quick"}
        assert isinstance(await batch.ask(Item("late", time.monotonic() + 0.2)), NotSent)
        slow.set()
        assert len(await asyncio.gather(*held)) == _batch.MOST_UNANSWERED

    asyncio.run(main())


def test_tasks_share_requests() -> None:
    requests: list[int] = []

    async def send(items: list[Item]) -> list[Answer]:
        requests.append(len(items))
        await asyncio.sleep(0)
        return [{"text": i.text} for i in items]

    async def main() -> None:
        batch = LoopBatch(send)
        items = [Item(str(i), time.monotonic() + 60) for i in range(300)]
        answers = await asyncio.gather(*[batch.ask(i) for i in items])
        assert [a["text"] for a in answers if isinstance(a, dict)] == [str(i) for i in range(300)]
        assert (sum(requests), len(requests)) == (300, 3)
        gone = asyncio.create_task(batch.ask(Item("gone", time.monotonic() + 60)))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not isinstance(await batch.ask(Item("next", time.monotonic() + 60)), Exception)

    asyncio.run(main())
