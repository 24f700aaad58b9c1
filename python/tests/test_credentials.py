"""Tokens, secrets of sessions, and TLS: what a client shows, and whom it trusts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, renew_now

import govnode
from govnode import testing
from govnode._binary import find
from govnode._core import Core
from govnode._credentials import Credentials, namespace_of


def made(address: str, *roles: str, namespace: str = "team") -> str:
    """Make a token at a node that asks nobody who they are, and still knows who shows one."""
    command = [find(), "token", "create", "--addr", address, "--namespace", namespace, "--role", ",".join(roles)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def allow(client: govnode.Client) -> None:
    client.put_policy("name: plain\nmax_tool_calls: 1000\nmax_concurrent: 50\n")


def test_a_token_says_who_calls_and_where(address: testing.Address) -> None:
    token = made(address, "agent", "orchestrator", "policy-author")
    with govnode.Client(address, token=token) as client:
        allow(client)
        session = client.session(agent="bot", policy="plain")
        with session.call("search", {"q": "x"}) as call:
            assert call.admitted
        assert client.get_session(session.id).agent_id == "bot"
        with pytest.raises(govnode.PermissionDenied, match="operator"):
            client.put_pool("gpu", 2)
    with govnode.Client(address) as other, pytest.raises(govnode.Rejected, match="not_found"):
        other.get_session(session.id)  # it is of another namespace


@pytest.mark.parametrize("wrong", ["gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "no-token-at-all"])
def test_an_unknown_token_is_final_and_shown_nowhere(address: testing.Address, wrong: str) -> None:
    with govnode.Client(address, token=wrong) as client:
        session = client.session("s", agent="bot", policy="plain")
        with pytest.raises(govnode.Unauthenticated) as raised, session.call("search", {}):
            pass
        shown = "".join(traceback.format_exception(raised.value))
        assert wrong not in shown
        assert wrong not in repr(client) + repr(vars(client))
        assert raised.value.code == "unauthenticated"


def test_a_token_is_drawn_anew_once(address: testing.Address) -> None:
    good = made(address, "agent", "orchestrator", "policy-author")
    drawn = ["gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa", good]
    asked = 0

    def draw() -> str:
        nonlocal asked
        asked += 1
        return drawn[min(asked, len(drawn)) - 1]

    with govnode.Client(address, token=draw) as client:
        allow(client)
        assert asked == 2
        client.get_policy("plain")
        assert asked == 2
    with (
        govnode.Client(address, token=lambda: drawn[0]) as client,
        pytest.raises(govnode.Unauthenticated),
    ):
        client.get_policy("plain")


def test_followers_draw_a_token_anew(address: testing.Address) -> None:
    first, second = (made(address, "agent", "orchestrator", "policy-author") for _ in range(2))
    drawn = ["gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa", first, second]
    asked = 0

    def draw() -> str:
        nonlocal asked
        asked += 1
        return drawn[min(asked, len(drawn)) - 1]

    with govnode.Client(address, token=first) as client:
        allow(client)
        session = client.session(agent="bot", policy="plain")
        for _ in range(2):
            with session.call("search", {}):
                pass
    with govnode.Client(address, token=draw) as client:
        events = client.events(from_oldest=True, session_id=session.id)
        seen = next(events)
        assert asked == 2
        subprocess.run([find(), "token", "revoke", first, "--addr", address], check=True, capture_output=True)
        with pytest.raises(govnode.NoAnswer, match="another one"):
            list(events)
        assert next(client.events(after=seen.cursor, session_id=session.id)).sequence > seen.sequence
        assert asked == 3
    with (
        govnode.Client(address, token=lambda: drawn[0]) as client,
        pytest.raises(govnode.Unauthenticated),
    ):
        next(client.events(from_oldest=True))


def test_a_token_in_the_environment(address: testing.Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = made(address, "agent", "orchestrator", "policy-author")
    monkeypatch.setenv("GOVNODE_TOKEN", token)
    with govnode.Client(address) as client:
        allow(client)
    monkeypatch.delenv("GOVNODE_TOKEN")
    file = tmp_path / "token"
    file.write_text("gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa\n")
    monkeypatch.setenv("GOVNODE_TOKEN_FILE", str(file))
    with govnode.Client(address) as client:
        with pytest.raises(govnode.Unauthenticated):
            client.get_policy("plain")
        file.write_text(token + "\n")  # it is read again
        client.get_policy("plain")


def test_settings_that_contradict_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "gn_team.abcd.aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    with pytest.raises(ValueError, match="namespace") as raised:
        govnode.Client("127.0.0.1:1", token=token, namespace="other")
    assert token not in str(raised.value)
    for wrong in ("", "two words", "line\n", "ä"):
        with pytest.raises(ValueError, match="token"):
            govnode.Client("127.0.0.1:1", token=wrong)
    with pytest.raises(ValueError, match="key"):
        govnode.Client("https://127.0.0.1:1", key="k.pem")
    monkeypatch.setenv("GOVNODE_TOKEN_FILE", "/none")
    with pytest.raises(ValueError, match="GOVNODE_TOKEN_FILE"):
        govnode.Client("127.0.0.1:1")


@pytest.mark.parametrize(
    ("token", "namespace"),
    [
        ("gn_team.abcd.x", "team"),
        ("gn_a.b.abcd.x", "a.b"),
        ("gn_team", ""),
        ("a.b.c", ""),
        ("gn_$cluster.abcd.x", "$cluster"),
    ],
)
def test_the_namespace_of_a_token(token: str, namespace: str) -> None:
    assert namespace_of(token) == namespace
    assert Credentials(token).namespace() == namespace
    assert "abcd" not in repr(Credentials(token))


def test_calls_bring_the_secret_of_their_session(address: testing.Address) -> None:
    with govnode.Client(address) as client:
        allow(client)
        session = client.session(agent="bot", policy="plain", secret=True)
        assert len(session.secret) >= 40
        assert session.secret not in repr(session)
        with session.call("search", {}, ttl=1.0) as call:
            assert call.admitted
        with pytest.raises(govnode.Rejected, match="not_found"), client.session(session.id).call("search", {}):
            pass
        with client.session(session.id, secret=session.secret).call("search", {}) as again:
            assert again.admitted
        with pytest.raises(ValueError, match="secret"):
            client.session(session.id, secret=True)


def test_renewals_and_goodbyes_bring_it_too(address: testing.Address) -> None:
    client = govnode.Client(address)
    allow(client)
    session = client.session(agent="bot", policy="plain", secret=True)
    held = session.begin("search", {}, ttl=60.0)
    lease = held._lease
    assert lease is not None
    until = lease.deadline
    renew_now(client, 60.0)
    eventually(lambda: lease.deadline > until)
    assert held.state == "held"
    client.close()  # which ends it
    with govnode.Client(address) as other:
        assert other.get_session(session.id).executions == 1


def test_renewals_draw_a_token_anew(address: testing.Address) -> None:
    good, old = made(address, "agent", "operator"), "gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    there = [good]

    def draw() -> str:
        return there[0]  # or an error: nobody gives out tokens now

    with govnode.Client(address, token=draw) as client:
        client.put_pool("renewed", 1)
        slot = client.acquire("renewed", ttl=60.0)  # for a slow machine too
        lease = slot._lease
        assert lease is not None
        for given in ([good], []):
            there[:] = given
            until = lease.deadline
            client._core.live().security.shown._header = b"Bearer " + old.encode()  # it does not hold any more
            renew_now(client, 60.0)
            if not given:
                eventually(lambda: slot.state == "at risk")
                there[:] = [good]
            eventually(lambda until=until: lease.deadline > until)  # type: ignore[misc]
            assert slot.state == "held"


class Hanging:
    """Gives out a token so many times at once, and then when it is told to."""

    def __init__(self, token: str, times: int) -> None:
        self.token, self.times = token, times
        self.asked = 0
        self.until = threading.Event()

    def __call__(self) -> str:
        self.asked += 1
        if self.asked > self.times:
            self.until.wait(20)
        return self.token


def patience(core: Core, timeout: float) -> None:
    """Change the timeout of a client: what is to fail does so soon, and what is not has time."""
    core.config = core.config._replace(timeout=timeout)


def test_token_that_is_not_given_out_holds_up_nobody_else(address: testing.Address) -> None:
    draw = Hanging(made(address, "agent", "operator"), 1)
    with govnode.Client(address, token=draw) as client:
        client.put_pool("held-up", 1)
        slot = client.acquire("held-up", ttl=12.0)
        shown = client._core.live().security.shown
        good, shown._header = shown._header, b"Bearer gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        renew_now(client, 12.0)
        patience(client._core, 1.0)
        for _ in range(2):
            with pytest.raises(govnode.Unauthenticated, match="no token was given out in time"):
                client.list_pools()
        patience(client._core, 10.0)
        shown._header = good  # one node did not know it, and the others do
        client.list_pools()
        assert slot._lease is not None
        until = slot._lease.deadline
        eventually(lambda: slot._lease is not None and slot._lease.deadline > until)
        slot.check()
        assert draw.asked == 2
        draw.until.set()


def test_first_token_is_waited_for_as_long_as_there_is_time(address: testing.Address) -> None:
    draw = Hanging(made(address, "agent", "operator"), 0)
    with govnode.Client(address, token=draw) as client:
        patience(client._core, 0.2)
        with pytest.raises(govnode.NoAnswer, match="no token was given out in time"):
            client.list_pools()
        with pytest.raises(govnode.NoAnswer, match="no token was given out in time"):
            next(iter(client.events()))
        patience(client._core, 10.0)
        draw.until.set()
        client.list_pools()
        assert draw.asked == 1


def test_loop_goes_on_while_a_token_is_drawn(address: testing.Address) -> None:
    draw = Hanging(made(address, "agent", "operator"), 0)

    async def main() -> None:
        async with govnode.AsyncClient(address, token=draw) as client:
            patience(client, 0.5)
            given_up = await asyncio.gather(*[client.list_pools() for _ in range(3)], return_exceptions=True)
            assert [type(e) for e in given_up] == [govnode.NoAnswer] * 3
            patience(client, 10.0)
            asked = asyncio.create_task(client.list_pools())
            await asyncio.sleep(0)
            draw.until.set()
            await asked
            assert draw.asked == 1

    asyncio.run(main())


def test_what_is_done_behind_callers_waits_for_a_token(address: testing.Address) -> None:
    draw = Hanging(made(address, "agent", "operator"), 1)
    with govnode.Client(address, token=draw) as client:
        client.list_pools()
        live = client._core.live()
        live.security.shown._header = b"Bearer gn_team.none.aaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        answers: list[tuple[int, dict[str, Any]]] = []
        live.keeper.later(lambda ask: answers.append(ask("SlotService/ListPools", {})), 20)
        eventually(lambda: draw.asked == 2)
        eventually(lambda: bool(live.keeper._jobs) and live.keeper._jobs[0].failures > 0)
        draw.until.set()
        eventually(lambda: answers != [])
        assert answers[0][0] == 200
        assert live.routes.pick().failures == 0  # it was the fault of no node


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@contextlib.contextmanager
def secured(folder: Path, *more: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start a node with TLS, and return its address and the files of a client."""

    def tls(*args: str) -> None:
        subprocess.run([find(), "tls", *args], cwd=folder, check=True, capture_output=True)

    tls("init", "--cluster", "tests")
    tls("node", "n1", "--hosts", "127.0.0.1")
    tls("client", "me")
    port = free_port()
    command = [find(), "serve", "--backend", "memory", "--node", "n1", "--listen", f"127.0.0.1:{port}"]
    command += [
        "--cluster-name",
        "tests",
        "--tls-cert",
        "node-n1.crt",
        "--tls-key",
        "node-n1.key",
        "--tls-ca",
        "ca.crt",
    ]
    with subprocess.Popen(
        [*command, *more], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        assert p.stdout is not None
        for line in p.stdout:
            if line.startswith("node "):
                break
        try:
            files = {"ca": "ca.crt", "cert": "client-me.crt", "key": "client-me.key"}
            yield f"127.0.0.1:{port}", {k: str(folder / v) for k, v in files.items()}
        finally:
            p.terminate()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with secured(tmp_path, "--tls-client-auth", "require") as (address, files):
        with govnode.Client(address, **files) as client:
            allow(client)
            with client.session(agent="bot", policy="plain").call("search", {}) as call:
                assert call.admitted
        for options in ({"ca": files["ca"]}, {"cert": files["cert"], "key": files["key"]}):
            wrong: dict[str, Any] = {**options, "timeout": 1.0}
            with govnode.Client(address, **wrong) as client, pytest.raises(govnode.Error):
                client.get_policy("plain")
        for name in ("CA", "CERT", "KEY"):
            monkeypatch.setenv(f"GOVNODE_TLS_{name}", files[name.lower()])
        with govnode.Client(address) as client:
            client.get_policy("plain")


def test_what_is_wrong_with_tls_is_said(tmp_path: Path) -> None:
    with secured(tmp_path) as (address, files):
        with (
            govnode.Client(address) as client,
            pytest.raises(govnode.Error, match="speaks TLS; give its authority as ca, or in GOVNODE_TLS_CA"),
        ):
            client.get_policy("plain")
        bad = tmp_path / "bad.pem"
        bad.write_text("no certificate")
        for options in (
            {"ca": "nowhere.crt"},
            {"ca": str(bad)},
            {"cert": "nowhere.crt", "key": files["key"]},
            {"cert": str(bad)},
        ):
            wrong: dict[str, Any] = options
            name, file = next(iter(options.items()))
            with pytest.raises(ValueError, match=f"^govnode: {name}: {file} .*cannot be read as") as e:
                govnode.Client(f"https://{address}", **wrong)
            assert e.value.__cause__ is None


def test_tls_on_a_loop(tmp_path: Path) -> None:
    asyncio.run(_on_a_loop(tmp_path))


async def _on_a_loop(tmp_path: Path) -> None:
    with secured(tmp_path) as (address, files):
        async with govnode.AsyncClient(f"https://{address}", ca=files["ca"]) as client:
            await client.put_policy("name: plain\nmax_tool_calls: 1000\n")
            session = client.session(agent="bot", policy="plain", secret=True)
            async with session.call("search", {}) as call:
                assert call.admitted
