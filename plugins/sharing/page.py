"""Renders a shared conversation as one HTML file without scripts, part by part. Pure."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import sha256
from html import escape
from typing import Any, Final

from agentsvc.extension.reading import member, texts

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #1c1f23; background: #fff; }
header { border-bottom: 1px solid #d0d4da; margin-bottom: 1.5rem; }
article { margin: 1rem 0; padding: .5rem 1rem; border-left: 4px solid #d0d4da; }
article.user { border-color: #2563c9; background: #f0f5fd; }
article.bad { border-color: #c0392b; }
h2 { font-size: .85rem; margin: 0; color: #555d66; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
pre.text { font: inherit; }
@media (prefers-color-scheme: dark) {
  body { color: #e4e7eb; background: #16181b; } article.user { background: #1c2636; } h2 { color: #a7b0ba; }
}
"""
_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
)
"""The content security policy of the page: only its own style sheet is allowed."""

_NOTICES: Final = {
    "PauseEvent": "Paused",
    "InterruptEvent": "Interrupted",
    "Condensation": "The history was shortened",
}
_texts: Final = partial(texts, image="[image]")


def head(title: str, facts: Iterable[str]) -> bytes:
    """Render the beginning of the file."""
    shown = escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width"><meta name="robots" content="noindex, nofollow">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{shown}</title><style>{_STYLE}</style></head>\n<body><header><h1>{shown}</h1>"
        f"<p>{escape(' · '.join(fact for fact in facts if fact))}</p></header><main>\n"
    ).encode()


FOOT: Final = b"</main></body></html>\n"


def articles(events: Iterable[bytes]) -> bytes:
    """Render some events."""
    return b"".join(map(article, events))


def article(body: bytes) -> bytes:
    """Render an event."""
    event = json.loads(body)
    kind, at = event["kind"], escape(str(event.get("timestamp", ""))[:19].replace("T", " "))
    who, tone, inner = "Agent", "", "".join(_inner(kind, event))
    if kind == "MessageEvent" and event.get("source") == "user":
        who, tone = "User", "user"
    elif kind in ("ObservationEvent", "ActionEvent", "ACPToolCallEvent"):
        who = str(event.get("tool_name") or event.get("title") or "Tool")
    elif "Error" in kind or kind == "UserRejectObservation":
        who, tone = ("Rejected", "bad") if kind == "UserRejectObservation" else ("Error", "bad")
    text = f'<article class="{tone}"><h2>{escape(who)} · {at}</h2>{inner}</article>\n'
    return text.encode(errors="replace")


def _inner(kind: str, event: dict[str, Any]) -> Iterator[str]:
    match kind:
        case "MessageEvent":
            yield _text(_texts(member(event, "llm_message").get("content")))
        case "ActionEvent":
            yield _text(_texts(event.get("thought")) or str(event.get("summary") or ""))
            yield _folded("Call", member(event, "action"))
        case "ObservationEvent":
            result = member(event, "observation")
            yield _folded("Result", _texts(result.get("content")) or result)
        case "ACPToolCallEvent":
            yield _folded("Result", event.get("content") or event.get("raw_output") or "")
        case _:
            words = [event.get(name) for name in ("error", "detail", "rejection_reason", "summary")]
            yield _text(_NOTICES.get(kind, ""))
            yield _text("\n".join(str(one) for one in words if one))


def _text(text: str) -> str:
    return f'<pre class="text">{escape(text)}</pre>' if text.strip() else ""


def _folded(name: str, value: Any) -> str:
    if not value:
        return ""
    if not isinstance(value, str):
        value = json.dumps(value, indent=2, ensure_ascii=False)
    return f"<details><summary>{name}</summary><pre>{escape(value)}</pre></details>"
