"""After a fork the child has a name and connections of its own, and nothing of what the parent holds."""

from __future__ import annotations

from collections.abc import Callable

from conftest import put
from test_credentials import made

import govnode
from govnode import testing

FORKS = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")  # of threads and fork, which is what this is about
import govnode

client = govnode.Client(sys.argv[1], name=sys.argv[3])
session = client.session(sys.argv[2])
stop = threading.Event()

def busy():  # so that the fork comes amid requests
    while not stop.is_set():
        client.get("k")

threads = [threading.Thread(target=busy) for _ in range(4)]
for t in threads: t.start()
name = client.name
with session.call("t", ttl=1) as call, client.slot("forked", ttl=1) as slot:
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            assert client.name != name, client.name
            assert call.end() is None and slot.release() is None
            with session.call("t") as own:  # its own
                assert own.admitted
            try:
                client.acquire("forked", wait=0)
            except govnode.Denied:
                pass
            else:
                os._exit(2)
            os._exit(0) if _ else sys.exit(0)  # with and without what is done at the end of a process
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    time.sleep(1.5)
    assert (call.state, slot.state) == ("held", "held"), (call.state, slot.state)
    assert len(client.list_slots("forked").slots) == 1
stop.set()
for t in threads: t.join()
assert call.ended.outcome == "ENDED"
print("ok")
"""

IN_BLOCK = """
import os, sys, warnings
warnings.simplefilter("ignore")
import govnode
client = govnode.Client(sys.argv[1])
session = client.session(sys.argv[2])
with session.call("t"):
    pid = os.fork()
# Both leave the block.
if pid == 0:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(session.read().executions)
"""


DRAWS = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
import govnode
asked, parent = threading.Event(), os.getpid()

def draw():
    asked.set()
    if os.getpid() == parent:
        threading.Event().wait()
    return sys.argv[2]

client = govnode.Client(sys.argv[1], token=draw)
threading.Thread(target=client.list_pools, daemon=True).start()
asked.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    client.list_pools()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("ok")
os._exit(0)
"""


def test_child_draws_a_token_of_its_own(address: testing.Address, python: Callable[..., str]) -> None:
    assert python(DRAWS, address, made(address, "operator")) == "ok\n"


def test_child_gives_back_nothing_of_its_parent(
    client: govnode.Client, session: govnode.Session, address: str, python: Callable[..., str]
) -> None:
    session.open()
    client.put_pool("forked", 1)
    for name in ("", "named"):
        assert python(FORKS, address, session.id, name) == "ok\n"
    info = session.read()
    assert (info.executions, info.open_calls) == (8, ())


def test_block_that_was_entered_before_ends_in_the_parent(
    client: govnode.Client, session: govnode.Session, address: str, python: Callable[..., str]
) -> None:
    put(client, "plain")
    session.open()
    assert python(IN_BLOCK, address, session.id) == "1\n"
