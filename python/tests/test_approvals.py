"""People decide about calls that a policy does not allow by itself."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from conftest import eventually
from faults import Proxy
from kernels import Kernel
from test_credentials import made, secured

import govnode
from govnode import testing
from govnode._binary import find
from govnode.integration import PolicyConfig, ToolCallRequest

ASKS = """
name: asks
allowed_tools: [mail]
require_human_approval: true
approval: {timeout: 60s}
"""


@pytest.fixture
def asking(client: govnode.Client) -> govnode.Session:
    client.put_policy(ASKS)
    return client.session(agent="anna", policy="asks")


def test_call_waits_for_a_yes(client: govnode.Client, asking: govnode.Session) -> None:
    entered = threading.Event()

    def work() -> None:
        with asking.call("mail", {"to": "bert"}, wait=60):
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(client.list_approvals(state="pending", session_id=asking.id)) == 1)
    approval = client.list_approvals(session_id=asking.id)[0]
    assert (approval.tool, approval.agent_id, approval.state, approval.required) == ("mail", "anna", "PENDING", 1)
    assert not entered.is_set()
    with pytest.raises(govnode.Rejected) as rejected:
        client.approve(approval.id, approver="Anna")
    assert rejected.value.reason == "SELF_APPROVAL"
    decided = client.approve(approval.id, approver="Carla", reason="fine")
    assert [(b.approver, b.vote, b.reason) for b in decided.ballots] == [("carla", "APPROVE", "fine")]
    assert entered.wait(30)
    thread.join()
    assert client.get_approval(approval.id).state == "USED"


def test_refusal_says_what_is_asked(client: govnode.Client, asking: govnode.Session) -> None:
    with pytest.raises(govnode.Denied) as denied, asking.call("mail", call_id="m1", wait=0):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "APPROVAL_REQUIRED"
    assert denied.value.approval is not None
    client.deny(denied.value.approval.id, approver="carla", reason="not today")
    with pytest.raises(govnode.Denied) as denied, asking.call("mail", call_id="m1"):
        pytest.fail("the block was entered")
    assert denied.value.outcome == "APPROVAL_DENIED"
    assert denied.value.approval is not None
    assert denied.value.approval.state == "DENIED"


def test_standing_approvals(client: govnode.Client, asking: govnode.Session) -> None:
    asking.open()
    standing = client.put_standing_approval("session", asking.id, "mail", {"to": "bert"}, expiry=60, uses=1)
    assert (standing.scope, standing.uses) == ("SESSION", 1)
    with asking.call("mail", {"to": "bert"}, wait=0):
        pass
    assert asking.begin("mail", {"to": "bert"}, wait=0).outcome == "APPROVAL_REQUIRED"
    every = client.put_standing_approval("agent", "anna", "mail", expiry=60)
    assert every.id in [s.id for s in client.list_standing_approvals(scope="agent", name="anna")]
    assert asking.begin("mail", {"to": "carla"}, wait=0).admitted
    client.delete_standing_approval(every.id)
    assert not asking.begin("mail", {"to": "dora"}, wait=0).admitted


def test_request_without_a_call(client: govnode.Client) -> None:
    asked = client.request_approval("deploy", {"to": "prod"}, agent="anna", message="may I?", timeout=60)
    assert (asked.state, asked.reason) == ("PENDING", "may I?")
    assert client.get_approval(asked.id, wait=0.01).state == "PENDING"
    assert client.cancel_approval(asked.id).state == "CANCELLED"


# Of adapters.

MAIL = ToolCallRequest("mail", {"to": "bert"})


def test_adapter_votes_as_whom_its_approver_is_known(tmp_path: Path) -> None:
    def token(roles: str) -> str:
        command = [find(), "token", "create", "--socket", "s", "--namespace", "team", "--role", roles]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    with secured(tmp_path, "--auth", "tokens", "--socket", "s") as (address, files):
        agent_token, approver_token = token("agent,orchestrator,policy-author"), token("approver")
        with (
            govnode.Client(address, ca=files["ca"], token=agent_token) as agent,
            govnode.Client(address, ca=files["ca"], token=approver_token) as approver,
        ):
            k = Kernel(PolicyConfig(sensitive_tools=["mail"]), client=agent, wait=0, approver=approver)
            ctx = k.create_context("anna")
            asked = k.pre_execute_check(ctx, MAIL).approval_id
            assert k.approve(asked)
            assert [b.approver for b in agent.get_approval(asked).ballots] == ["token:" + approver_token.split(".")[1]]
            k.pre_execute_check(ctx, MAIL).require()
            assert k.deny(k.pre_execute_check(ctx, MAIL).approval_id)
            k = Kernel(k.config, client=agent, approver=approver, approval_callback=lambda *_: True)
            k.pre_execute_check(k.create_context("anna"), MAIL).require()
            named = Kernel(k.config, client=agent, wait=0, approver=approver, approver_name="carla")
            asked = named.pre_execute_check(named.create_context("anna"), MAIL).approval_id
            with pytest.raises(govnode.PermissionDenied, match="as whom you are known"):
                named.approve(asked)


@pytest.mark.parametrize("shown", [True, False])
def test_adapter_asks_once_as_whom_its_approver_is_known(address: testing.Address, shown: bool) -> None:
    token = made(address, "approver", namespace="default") if shown else None
    with (
        govnode.Client(address) as client,
        Proxy(address) as proxy,
        govnode.Client(proxy.address, token=token) as approver,
    ):
        k = Kernel(PolicyConfig(sensitive_tools=["mail"]), client=client, wait=0, approver=approver)
        ctx = k.create_context("anna")
        asked = [k.pre_execute_check(ctx, MAIL).approval_id]
        assert k.approve(asked[0])
        k.pre_execute_check(ctx, MAIL).require()
        asked.append(k.pre_execute_check(ctx, MAIL).approval_id)
        assert k.deny(asked[1])
        known = "token:" + token.split(".")[1] if token else "approver"
        assert [client.get_approval(id).ballots[0].approver for id in asked] == [known] * 2
        assert [m for m, _ in proxy.seen if m != "Status"] == ["WhoAmI", "Decide", "Decide"]


def test_adapter_finds_what_all_its_contexts_ask(client: govnode.Client) -> None:
    k = Kernel(PolicyConfig(sensitive_tools=["mail"]), client=client, wait=0, approver=client)
    first, second = k.create_context("anna"), k.create_context("anna")
    asked = [k.pre_execute_check(ctx, MAIL).approval_id for ctx in (first, second)]
    assert {p["approval_id"] for p in k.get_pending_approvals().values()} == set(asked)
    assert all(k.approve(id) for id in asked)
    k.end_context(first)
    k.pre_execute_check(second, MAIL).require()
