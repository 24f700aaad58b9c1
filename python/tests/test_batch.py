"""Operations that are under way together share requests, whatever becomes of those who send them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from conftest import eventually

from govnode._batch import MOST_OPERATIONS, Answer, Item, LoopBatch, ThreadBatch
from govnode._transport import Lost, NotSent, run


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
    assert batch._all.unanswered == [1]


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
