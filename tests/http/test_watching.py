"""The dashboard and the alerts ask for figures that a server really prints, by labels that it has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

import agentsvc
from agentsvc.accounts.keys import Role
from agentsvc.base.errors import AgentsvcError, DatabaseBusy, DiskFull, StorageFailed, TimedOut
from agentsvc.testing.llm import Playbook, Reply, ToolCall
from tests.fake_agent import FakeAgent
from tests.service import Client, Service

FILES: Final = Path(agentsvc.__file__).parent / "deploy"
_SAMPLE: Final = re.compile(r'^(agentsvc_\w+)(?:\{((?:\w+="[^"]*",?)*)\})? \S+$', re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_SELECTOR: Final = re.compile(r"\b(\w+)\{([^}]*)\}|\b(agentsvc_\w+|up)\b")
_GROUPS: Final = re.compile(r"\b(?:by|without|on|ignoring) ?\(([^)]*)\)")
_SHOWN: Final = re.compile(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}")
_OF_PROMETHEUS: Final = {"up": {"job": {"agentsvc"}}}
_BUSY: Final = Reply(
    calls=(ToolCall(tool="terminal", arguments={"command": "sleep 60"}),), delay_seconds=60
)

type Series = dict[str, dict[str, set[str]]]
"""Names of figures, their labels, and the values of these that were seen."""


async def print_figures(service: Service, client: Client, agent: FakeAgent) -> Series:
    """Return what a server prints that has done a bit of everything."""
    conversation_id = await client.start_conversation("please work")
    seen = await client.wait_for_execution(conversation_id, "finished")
    await client.get(f"/sandboxes/{seen['sandbox_id']}/agent/health")
    agent.playbook = Playbook((_BUSY,))
    await client.wait_for_execution(await client.start_conversation(), "running")
    without_model = await service.make_client("bob", role=Role.MEMBER)
    task = await without_model.start_task()
    assert (await without_model.end_of_start(task["id"]))["status"] == "ERROR"
    stranger = await service.make_client(user=None)
    assert (await stranger.get("/api/v1/app-conversations/search")).status == 401
    found: Series = {name: dict(labels) for name, labels in _OF_PROMETHEUS.items()}
    for name, labels in _SAMPLE.findall((await client.get("/metrics")).text):
        of_name = found.setdefault(name, {})
        for label, _, value in _LABEL.findall(labels):
            of_name.setdefault(label, set()).add(value)
    return found


def alerts() -> Iterator[tuple[str, list[str]]]:
    """Yield each expression of an alert, with the texts that say what it found."""
    [group] = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        yield rule["expr"], [rule["annotations"]["summary"], rule["annotations"]["todo"]]


def panels() -> Iterator[tuple[str, list[str]]]:
    """Yield each expression of the dashboard, with its legend."""
    board: dict[str, Any] = msgspec.json.decode((FILES / "grafana.json").read_bytes())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], [target["legendFormat"]]


def wrong(expression: str, texts: list[str], printed: Series) -> list[str]:
    """Return what an expression asks for that there is not."""
    labels: set[str] = {"le"} if "_bucket" in expression else set()
    problems = []
    for name, matchers, bare in _SELECTOR.findall(expression):
        known = printed.get(name or bare)
        if known is None:
            problems.append(f"no figure is called {name or bare}: {expression}")
            continue
        labels |= known.keys()
        for label, how, value in _LABEL.findall(matchers):
            # All models are printed here, and none as `other`.
            named = {*known.get(label, ()), "other"}
            if label not in known or (how in ("=", "!=") and value not in named):
                problems.append(f'{name} has no {label}="{value}": {expression}')
    asked = [name.strip() for group in _GROUPS.findall(expression) for name in group.split(",")]
    for text in texts:
        asked += [name for name in _SHOWN.findall(text) if name != "value"]
    return problems + [f"no label {name}: {expression}" for name in asked if name not in labels]


async def test_dashboard_and_alerts_ask_for_what_a_server_prints(
    service: Service, client: Client, fake_agent: FakeAgent
) -> None:
    printed = await print_figures(service, client, fake_agent)
    asked = [*alerts(), *panels()]
    problems = [line for expression, texts in asked for line in wrong(expression, texts, printed)]
    assert problems == []

    everything = " ".join(expression for expression, _ in panels())
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in printed.keys() - {"up"}}
    assert [name for name in sorted(families) if name not in everything] == []


def test_requests_that_fail_in_the_server_are_all_alerted_of() -> None:
    kinds = (AgentsvcError, DatabaseBusy, DiskFull, StorageFailed, TimedOut)
    statuses = {str(kind.status) for kind in kinds}
    [expression] = [one for one, _ in alerts() if "|504" in one]
    counted = [
        set(value.split("|")) for label, _, value in _LABEL.findall(expression) if label == "status"
    ]
    assert counted == [statuses] * 2


def test_what_nobody_prints_is_seen() -> None:
    printed: Series = {"agentsvc_a": {"x": {"1"}}, "agentsvc_b_bucket": {"le": {"+Inf"}}}
    assert wrong('sum by (x) (agentsvc_a{x="1"})', ["{{x}}"], printed) == []
    assert wrong("sum by (le) (rate(agentsvc_b_bucket[5m]))", ["{{ $value }}"], printed) == []
    for expression, text in (
        ("agentsvc_c", ""),
        ('agentsvc_c{x="1"}', ""),
        ('agentsvc_a{x="2"}', ""),
        ('agentsvc_a{y=~"1|2"}', ""),
        ("sum by (y) (agentsvc_a)", ""),
        ("agentsvc_a", "{{ $labels.y }}"),
    ):
        assert wrong(expression, [text], printed), (expression, text)
