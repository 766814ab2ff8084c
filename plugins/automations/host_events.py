"""Parses events from a git host's webhook deliveries and polled lists. Pure."""

import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from agentsvc.base import NotAuthenticated, Secret
from agentsvc.extension.conversations import Provider
from agentsvc.extension.git import part_of

from .host_calls import HostRecord
from .hosts import HOSTS, Kind, Rule
from .model import GitSubject, GitTrigger
from .signature import key_of

OWN: Final = "<!-- agentsvc:"
"""Beginning of the server's own comments, which are ignored as events."""

_MAX_LENGTH: Final = 200


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event at a git host; its details are fetched from the host later."""

    kind: Kind
    number: str = ""
    is_pull: bool = False
    id: str = ""
    actor: str = ""
    text: str = ""

    @property
    def key(self) -> str:
        """The key of the event, the same for a delivery and a poll."""
        if self.kind is Kind.CHECK:
            return f"check:{self.id}"
        return f"{'pull' if self.is_pull else 'issue'}:{self.number}:{self.kind}:{self.id}"


def check_sender(
    provider: Provider, headers: Mapping[str, str], body: bytes, secret: Secret, now: datetime
) -> None:
    """Raise NotAuthenticated unless a delivery is signed with the secret, or shows it (GitLab)."""
    token = headers.get("X-Gitlab-Token")
    if provider is not Provider.GITLAB or token is None:
        key_of(headers, body, secret, now)
    elif not hmac.compare_digest(token.encode(errors="surrogateescape"), secret.reveal().encode()):
        raise NotAuthenticated("The token of the delivery is wrong")


def events_in(
    provider: Provider, trigger: GitTrigger, headers: Mapping[str, str], payload: Any
) -> list[HostEvent]:
    """Return the events of a delivery that are relevant to a trigger."""
    host = HOSTS[provider]
    named = next((headers[name] for name in host.event_headers if name in headers), None)
    if named is None:
        named = part_of(payload, "object_kind")
    action = part_of(payload, host.event) if host.event else ""
    event = f"{named}.{action}" if action else named
    found = [
        _event_by(rule, payload)
        for rule in host.rules
        if fnmatchcase(event, rule.event)
        and all(
            part_of(payload, name) == text or (text == "*" and part_of(payload, name))
            for name, text in rule.when.items()
        )
    ]
    return [one for event in found for one in relevant(trigger, event)]


def events_of_issue(
    trigger: GitTrigger, issue: HostRecord, comments: Iterable[HostRecord]
) -> list[HostEvent]:
    """Return the events of a polled issue that are relevant to a trigger."""
    number = issue["number"]
    found = [HostEvent(kind=Kind.LABEL, number=number, id=issue.get("labels", ""))]
    found += [event_of(one, Kind.COMMENT, number=number) for one in comments]
    return [one for event in found for one in relevant(trigger, event)]


def event_of(comment: HostRecord, kind: Kind, *, number: str, is_pull: bool = False) -> HostEvent:
    """Return the event of a comment on an issue or a pull request."""
    known = {name: comment[name] for name in ("id", "actor", "text")}
    return HostEvent(kind=kind, number=number, is_pull=is_pull, **known)


def relevant(trigger: GitTrigger, event: HostEvent) -> list[HostEvent]:
    """Return an event as the trigger records it, or no event if it is irrelevant."""
    if event.text.startswith(OWN) or (not event.number and event.kind is not Kind.CHECK):
        return []
    if event.kind is Kind.CLOSED:
        return [event]
    if trigger.on is not GitSubject.REQUEST or event.kind is Kind.OPENED:
        subject = GitSubject.PULL_REQUEST if event.is_pull else GitSubject.ISSUE
        return [event] if event.kind is Kind.OPENED and trigger.on is subject else []
    if event.kind is Kind.LABEL:
        has = trigger.label is not None and trigger.label in event.id.split("\n")
        return [msgspec.structs.replace(event, id=trigger.label)] if has else []
    if event.kind is Kind.COMMENT and not mentions(trigger, event.text):
        return []
    return [msgspec.structs.replace(event, text="")]


def mentions(trigger: GitTrigger, text: str) -> bool:
    """Return whether a text mentions the account of a trigger."""
    if trigger.mention is None:
        return False
    name = re.escape(trigger.mention.removesuffix("[bot]"))
    return bool(re.search(rf"(?<![\w@./-])@{name}(?![\w/-])", text, re.IGNORECASE))


def _event_by(rule: Rule, payload: Any) -> HostEvent:
    identity = part_of(payload, rule.id) if rule.id else ""
    if rule.kind is Kind.CHECK:
        identity = identity.rpartition("/")[2]
    return HostEvent(
        kind=rule.kind,
        number=part_of(payload, rule.number)[:_MAX_LENGTH] if rule.kind is not Kind.CHECK else "",
        is_pull=rule.pull == "*"
        or (bool(rule.pull) and part_of(payload, rule.pull) not in ("", "false")),
        id=identity,
        actor=part_of(payload, rule.actor)[:_MAX_LENGTH],
        text=part_of(payload, rule.text) if rule.text else "",
    )
