"""What the policy of an adapter is on the service, and how it comes there (adapter contract 3.4, 12.2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Rejected
from ..policy import GovernancePolicy, PolicyConfig

if TYPE_CHECKING:
    from ..client import Client
    from ..messages import Decision
    from .base import BaseIntegration

_MAIN, _RULES = "policy.yaml", "rules.yaml"
_DEFAULT_TIMEOUT = 300  # seconds, of a policy that states none

#: What the limits of a tree may have beside the fields of a GovernancePolicy. The service checks the values.
LIMITS = (
    "max_attempts", "max_calls_per_tool", "max_model_calls", "max_agent_calls", "max_handoffs",
    "max_sampling_requests", "max_consecutive_failures", "breaker_reset", "deny_all_tools", "approval",
    "content_hashes", "content_hash_mode", "guardrails", "rate_limits", "budgets", "mode",
)  # fmt: skip


class PolicyConflict(ValueError):
    """The name of a policy holds other content on the service."""


@dataclass(frozen=True)
class Tree:
    """The files of a policy, as the service is to have them."""

    name: str
    files: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What the service knows these files by."""
        encoded = b"govnode-tree/1\n"
        for path, content in sorted((p.encode(), c.encode()) for p, c in self.files.items()):
            encoded += _length(path) + path + _length(content) + content
        return "sha256:" + hashlib.sha256(encoded).hexdigest()


def _length(part: bytes) -> bytes:
    n, out = len(part), bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def checked_limits(limits: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the limits, or raise ValueError for one that the service would overlook."""
    own = {f.name for f in fields(GovernancePolicy)}
    for name in limits or ():
        if name in own:
            raise ValueError(f"limits: {name} is a field of the policy: set it there")
        if name not in LIMITS:
            raise ValueError(f"limits: there is no {name}; there are {', '.join(LIMITS)}")
        try:
            json.dumps(limits[name] if limits else None)
        except (TypeError, ValueError) as e:
            raise ValueError(f"limits: {name} must be made of plain values: {e}") from None
    return dict(limits or {})


def checked_names(field: str, names: Iterable[str]) -> list[str]:
    """Return names as a list, or raise ValueError for what is none."""
    listed = [names] if isinstance(names, str) else list(names)
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in listed):
        raise ValueError(f"{field} must be a list of texts that are not empty, got {names!r}")
    return listed


def tree_of(
    policy: GovernancePolicy,
    config: PolicyConfig | None,
    limits: Mapping[str, Any],
    beside: Mapping[str, str],
    asks: bool,
    blocked_tools: list[str],
) -> Tree:
    """Return a policy as files. One that has no name of its own gets one from its content.

    ``beside`` are further files. ``asks`` says that there is somebody to ask where a human approval is required.
    """
    values: dict[str, Any] = {**policy.to_dict(), **limits}
    rules = []
    head = ""
    blocked = [*blocked_tools, *(config.blocked_tools if config is not None else ())]
    if blocked:
        rules.append(_rule("blocked-tools", blocked, "deny", "The tool is blocked"))
    if config is not None:
        finds = "deny" if config.pii_detection else "off"
        values["scan"] = {"credentials": finds, "personal_data": finds}
        values.setdefault("max_agent_calls", config.max_agent_calls)
        if config.sensitive_tools:
            rules.append(_rule("sensitive-tools", config.sensitive_tools, "ask", "The tool requires human approval"))
        if config.max_budget is not None:
            # It is a budget of each session. Here it is named so that another amount is another policy.
            head = f"# max_budget: {config.max_budget}\n"
    if asks and (policy.require_human_approval or any(r["action"] == "ask" for r in rules)):
        values.setdefault("approval", {})
    files = {_MAIN: head + _yaml(values), **beside}
    if rules:
        files[_RULES] = _yaml({"name": "tools", "rules": rules})
    name = policy.name
    if name == "default":
        name = "py-" + Tree(name, files).digest.partition(":")[2][:12]
    values["name"] = name
    files[_MAIN] = head + _yaml(values)
    return Tree(name, files)


def _rule(name: str, tools: list[str], action: str, message: str) -> dict[str, Any]:
    condition = {"field": "tool_name", "operator": "in", "value": list(tools)}
    return {"name": name, "condition": condition, "action": action, "priority": 100, "message": message}


def _yaml(values: Mapping[str, Any]) -> str:
    """Write YAML as the service reads it. JSON is YAML without anchors, aliases and words that mean something."""
    return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def put(client: Client, tree: Tree, replacing: bool) -> str:
    """Put a policy under its name, and return its digest. Raises PolicyConflict where the name has other content."""
    digest = tree.digest
    if not replacing:
        try:
            found = client.get_policy(tree.name)
        except Rejected as e:
            if e.code != "not_found":
                raise
        else:
            if found.digest == digest:
                return digest
            raise PolicyConflict(
                f"govnode: policy {tree.name} has other content on the service: give this one another name, "
                "or replace=True, or use policy='NAME'"
            )
    return client.put_policy(name=tree.name, files=tree.files).digest


def timeout_of(client: Client, name: str) -> float:
    """Return how long a session may last under a policy that is on the service."""
    import yaml

    for file in client.get_policy(name).files:
        if file.path.endswith((".yaml", ".yml", ".json")):
            read = yaml.safe_load(file.content)
            found = read.get("timeout_seconds") if isinstance(read, dict) else None
            if isinstance(found, int):
                return float(found)
    return float(_DEFAULT_TIMEOUT)


class CedarEvaluator:
    """Asks the service about the Cedar policy that lies beside the adapter's. The checks ask it anyway."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files
        self._kernel: BaseIntegration | None = None

    @classmethod
    def load(cls, path: str | None, content: str | None, entities: list[dict[str, Any]] | None) -> CedarEvaluator:
        """Make it from a file or a text: one of them must be given."""
        if (path is None) == (content is None):
            raise ValueError("from_cedar: give either policy_path or policy_content")
        files = {"policy.cedar": Path(path).read_text(encoding="utf-8") if path is not None else content or ""}
        if entities:
            files["entities.json"] = json.dumps(entities)
        return cls(files)

    def bind(self, kernel: BaseIntegration) -> None:
        """Say whose policy it lies beside."""
        self._kernel = kernel

    def evaluate(self, context: dict[str, Any]) -> Decision:
        """Return what the service decides, by the policy that the context of the agent was made with."""
        kernel = self._kernel
        if kernel is None:
            raise RuntimeError("the evaluator belongs to no adapter")
        ctx = kernel.contexts.get(str(context.get("agent_id", "")))
        tree = ctx._tree if ctx is not None and ctx._tree is not None else kernel._tree(kernel.policy)
        answer = kernel.client.evaluate(
            context.get("tool_name", ""),
            context.get("tool_args") or {},
            policy=put(kernel.client, tree, kernel._replace),
            agent=context.get("agent_id", ""),
            context={k: v for k, v in context.items() if k not in ("tool_name", "tool_args", "agent_id")},
        )
        return answer.decision
