"""Operations that are under way together share requests.

No timer gathers them: who finds room sends what has gathered meanwhile, and hands out the answers. At most two
requests are unanswered, so under load each carries many operations, and a single one goes at once. One that is slow
counts no more: it may wait for a guardrail, for which others are not to wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ._transport import Lost, NotSent
from ._wire import MOST_BYTES

if TYPE_CHECKING:
    import asyncio

UNANSWERED = 2
SLOW = 0.2  # seconds after which a request makes room for others
MOST_UNANSWERED = 16  # with those that are slow
MOST_OPERATIONS = 128

Answer = dict[str, Any] | Exception


class Item:
    """An operation on its way, and then its answer."""

    __slots__ = ("answer", "batch", "sent", "text", "until", "wake")

    def __init__(self, text: str, until: float) -> None:
        self.text = text  # the operation as JSON, without its tag and the brackets around it
        self.until = until  # on the monotonic clock
        self.sent = 0.0
        self.answer: Answer | None = None
        self.batch: list[Item] = []  # what it sends, if it is the one to send
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    pass


# Sends a request of many operations, and returns their answers in their order.
Send = Callable[[list[Item]], Coroutine[Any, Any, list[Answer]]]


class _Gathered:
    """What has gathered, and what is under way."""

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self.unanswered: list[list[Item]] = []  # requests, by what they carry

    def _quick(self) -> list[list[Item]]:
        now = time.monotonic()
        return [items for items in self.unanswered if now - items[0].sent < SLOW]

    def room(self) -> int:
        """Return how many requests may be unanswered now."""
        return min(UNANSWERED + len(self.unanswered) - len(self._quick()), MOST_UNANSWERED)

    def take(self) -> list[Item]:
        """Return what goes into the next request; nothing if that has to wait.

        A second request goes only if it carries as much as the first: many small ones cost more than they save.
        """
        quick = self._quick()
        if len(self.unanswered) >= self.room() or len(self.waiting) < sum(map(len, quick)):
            return []
        items = self._next()
        if items:
            self.unanswered.append(items)
        return items

    def _next(self) -> list[Item]:
        items: list[Item] = []
        size, now = 0, time.monotonic()
        while self.waiting and len(items) < MOST_OPERATIONS:
            size += len(self.waiting[0].text) + 16
            if items and size > MOST_BYTES:
                break
            items.append(self.waiting.popleft())
            items[-1].sent = now
        return items


async def _hand_out(send: Send, items: list[Item]) -> None:
    """Send a request, and see to it that each of its operations has an answer whatever happens."""
    answers: list[Answer] = []
    try:
        answers = await send(items)
    finally:
        for i, item in enumerate(items):
            item.answer = answers[i] if i < len(answers) else Lost("its request was given up")


class ThreadBatch:
    """Shares requests among threads. Of those of a request the one with the most time sends it, and waits for all."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._all = _Gathered()

    async def ask(self, item: Item) -> Answer:
        """Return the answer to an operation."""
        wake = threading.Lock()
        wake.acquire()
        item.wake = wake.release
        with self._lock:
            self._all.waiting.append(item)
            leader = self._lead()
        if leader is not item:
            if leader is not None:
                leader.wake()
            try:
                while not wake.acquire(timeout=max(min(item.until - time.monotonic(), SLOW), 0.001)):
                    if time.monotonic() >= item.until:
                        break
                    self._look()
            except BaseException:
                self._give_up(item)
                raise
            left = self._leave(item)
            if left is not None:
                return left
        try:
            await _hand_out(self._send, item.batch)
        finally:
            self._hand_over(item)
        assert item.answer is not None
        return item.answer

    def _lead(self) -> Item | None:
        """Return the one whose thread is to send now, with what it sends. The lock must be held."""
        items = self._all.take()
        if not items:
            return None
        leader = max(items, key=lambda item: item.until)
        leader.batch = items
        return leader

    def _look(self) -> None:
        """Let another one lead if requests have become slow."""
        with self._lock:
            leader = self._lead()
        if leader is not None:
            leader.wake()

    def _hand_over(self, led: Item) -> None:
        """Let another one lead, and wake those who have their answers."""
        with self._lock:
            self._all.unanswered.remove(led.batch)
            leader = self._lead()
        if leader is not None:
            leader.wake()  # first, since others wait for what it sends
        for item in led.batch:
            if item is not led:
                item.wake()

    def _leave(self, item: Item) -> Answer | None:
        """Return the answer to an operation that was waited for, or None if it leads."""
        with self._lock:
            if item.answer is not None:
                return item.answer
            if item.batch:
                return None
            if item in self._all.waiting:
                self._all.waiting.remove(item)
                return NotSent("it waited for others in vain")
            return Lost("no answer in time")

    def _give_up(self, item: Item) -> None:
        """Let another one send what an operation was to send whose thread is interrupted."""
        leader = None
        with self._lock:
            if item.batch:
                self._all.unanswered.remove(item.batch)
                self._all.waiting.extendleft(reversed([other for other in item.batch if other is not item]))
                leader = self._lead()
            elif item in self._all.waiting:
                self._all.waiting.remove(item)
        if leader is not None:
            leader.wake()


class LoopBatch:
    """Shares requests among the tasks of an event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._all = _Gathered()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, item: Item) -> Answer:
        """Return the answer to an operation."""
        import asyncio

        gathered = self._all
        answered = asyncio.get_running_loop().create_future()
        item.wake = lambda: None if answered.done() else answered.set_result(None)
        gathered.waiting.append(item)
        self._begin()
        try:
            # Not wait_for: before 3.12 that loses a cancellation which comes with the answer.
            while (left := item.until - time.monotonic()) > 0 and not answered.done():
                done, _ = await asyncio.wait((answered,), timeout=min(left, SLOW))
                if not done:
                    self._begin()  # requests may have become slow
            if item.answer is None:
                return (
                    NotSent("it waited for others in vain") if item in gathered.waiting else Lost("no answer in time")
                )
        finally:
            if item in gathered.waiting:
                gathered.waiting.remove(item)
        return item.answer

    def _begin(self) -> None:
        if self._all.waiting and len(self._tasks) < self._all.room():
            import asyncio

            task = asyncio.ensure_future(self._lead())
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._all.waiting and not self._tasks:  # it was cancelled, with its loop
            self._begin()

    async def _lead(self) -> None:
        """Send what has gathered until nothing is left."""
        while items := self._all.take():
            try:
                await _hand_out(self._send, items)
            finally:
                self._all.unanswered.remove(items)
                for item in items:
                    item.wake()


Batch = ThreadBatch | LoopBatch
