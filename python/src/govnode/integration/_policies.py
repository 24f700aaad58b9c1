"""How the policy of an adapter comes to the service (adapter contract 3.4)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Rejected
from ..policy import GovernancePolicy

if TYPE_CHECKING:
    from ..client import Client
    from ..messages import Decision
    from .base import BaseIntegration

_MAIN = "policy.yaml"


def put(client: Client, policy: GovernancePolicy, files: dict[str, str], replacing: bool) -> str:
    """Put a policy under its name, and return its digest. Raises ValueError where the name has other content.

    One that has no name of its own gets one from its content, so that two of them do not meet.
    """
    if policy.name == "default":
        content = json.dumps([policy.to_dict(), files], sort_keys=True)
        policy = replace(policy, name="py-" + hashlib.sha256(content.encode()).hexdigest()[:12])
    tree = {_MAIN: policy.to_yaml(), **files}
    if not replacing:
        try:
            found = client.get_policy(policy.name)
        except Rejected as e:
            if e.code != "not_found":
                raise
        else:
            if {f.path: f.content for f in found.files} != tree:
                raise ValueError(
                    f"govnode: policy {policy.name} has other content on the service: give this one another name, "
                    "or replace=True, or use policy='NAME'"
                )
            return found.digest
    return client.put_policy(name=policy.name, files=tree).digest


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
        """Return what the service decides."""
        kernel = self._kernel
        if kernel is None:
            raise RuntimeError("the evaluator belongs to no adapter")
        digest = put(kernel.client, kernel.policy, self.files, kernel._replace)
        answer = kernel.client.evaluate(
            context.get("tool_name", ""),
            context.get("tool_args") or {},
            policy=digest,
            agent=context.get("agent_id", ""),
            context={k: v for k, v in context.items() if k not in ("tool_name", "tool_args", "agent_id")},
        )
        return answer.decision
