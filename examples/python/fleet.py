#!/usr/bin/env python3
"""A worker of a fleet, by plain HTTP: the standard library and nothing else.

Start it as often as you like. However many workers run, at most three of their
calls are at work at one time.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

NODES = os.environ.get("NODES", "127.0.0.1:7070").split(",")

POLICY = """
name: fleet-python
max_concurrent: 3
backpressure_threshold: 2
max_tool_calls: 8
"""


def post(method, body, patience=10.0):
    """Ask the nodes in turn until one answers.

    Sending a request again is safe because it carries the same id: it has one
    effect, however often it is sent, and to whichever node.
    """
    deadline = time.monotonic() + patience
    attempt = 0
    while True:
        request = urllib.request.Request(
            f"http://{NODES[attempt % len(NODES)]}/govnode.v1.{method}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        attempt += 1
        try:
            with urllib.request.urlopen(request, timeout=patience) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            problem = json.loads(error.read() or b"{}")
            # The service is away, or overloaded. Anything else is a mistake in
            # the request, and stays one.
            if error.code not in (429, 500, 503, 504) or time.monotonic() > deadline:
                raise RuntimeError(f"{method}: {problem.get('message', error)}") from None
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{method}: no node answers: {error}") from None
        time.sleep(0.2)


def call(session, tool, arguments, work):
    """Ask before the work, report after it."""
    call_id = str(uuid.uuid4())
    begun = post("CallService/BeginCall", {
        "sessionId": session, "callId": call_id, "tool": tool,
        "arguments": arguments, "wait": "20s",
    }, patience=30)
    if begun["outcome"] != "OUTCOME_ADMITTED":
        return begun
    status = "STATUS_FAILED"
    try:
        work()
        status = "STATUS_SUCCEEDED"
    finally:
        post("CallService/EndCall", {"sessionId": session, "callId": call_id, "status": status})
    return begun


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "worker"
    session = f"{name}-{uuid.uuid4()}"
    post("PolicyService/PutPolicy", {"yaml": POLICY, "requestId": str(uuid.uuid4())})
    post("SessionService/CreateSession", {
        "sessionId": session, "agentId": name, "policy": {"name": "fleet-python"},
    })

    answers = []

    def one(page):
        answers.append(call(session, "search", {"page": page}, lambda: time.sleep(0.05)))

    threads = [threading.Thread(target=one, args=(page,)) for page in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    admitted = [a for a in answers if a["outcome"] == "OUTCOME_ADMITTED"]
    most = max(a["pressure"]["inUse"] for a in admitted)
    print(f"{name}: {len(admitted)} calls done, at most {most} at work at one time in the whole fleet")

    ninth = call(session, "search", {"page": 9}, lambda: None)
    print(f"{name}: the ninth call is refused: {ninth['reason']}")
    post("SessionService/CloseSession", {"sessionId": session})


if __name__ == "__main__":
    main()
