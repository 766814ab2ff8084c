"""What is hidden in texts and events of a shared conversation."""

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.values import MASK
from tests.plugin_loading import part

if TYPE_CHECKING:
    from sharing.masking import Masker
    from sharing.redaction import REDACTED, Redaction, show
else:
    Masker = part("sharing.masking").Masker
    REDACTED = part("sharing.redaction").REDACTED
    Redaction = part("sharing.redaction").Redaction
    show = part("sharing.redaction").show

LONG = "c2VjcmV0IHRoYXQgaXMgbG9uZyBlbm91Z2ggdG8gd3JhcA"


@pytest.mark.parametrize("gap", ["\n", "\r\n", " \n\t", r"\n", r"\\n", r"\r\n"])
def test_a_long_secret_is_hidden_in_several_lines(gap: str) -> None:
    masker = Masker([LONG])
    wrapped = gap.join(LONG[at : at + 8] for at in range(0, len(LONG), 8))
    text = f"one {wrapped} two{gap}{wrapped}{wrapped}"
    assert masker.mask(text) == f"one {MASK} two{gap}{MASK}{MASK}"
    assert masker.mask(wrapped[:-1]) == wrapped[:-1]


def test_several_long_secrets_are_hidden_though_they_overlap() -> None:
    one, other = "a" * 40 + "b" * 20, "b" * 20 + "c" * 40
    masked = Masker([one, other]).mask("x" + "a" * 40 + "b\n" * 20 + "c" * 40 + "y")
    assert masked.replace(MASK, "") == "xy"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("a" * 2_000 + "b", "a\n" * 8_000 + "b"),
        ("\\" * 40 + "x", "\\" * 20_000 + "\n" + "\\" * 40 + "\nx"),
    ],
)
def test_no_secret_makes_a_text_take_long(secret: str, text: str) -> None:
    masker, began = Masker([secret]), time.process_time()
    assert MASK in masker.mask(text)
    assert time.process_time() - began < 1


def event(**members: Any) -> bytes:
    head = {"kind": "ObservationEvent", "tool_name": "file_editor"}
    return json.dumps({**head, "observation": {"kind": "X", "text": "inside"}, **members}).encode()


@pytest.mark.parametrize("word", ["observation", "file", "edit", "tool_name", "ObservationEvent"])
@pytest.mark.parametrize("redact", [Redaction.TOOL_OUTPUT, Redaction.FILES])
def test_a_secret_that_is_a_word_of_events_shows_nothing(word: str, redact: Redaction) -> None:
    shown = show(event(), Masker([word]).mask, [redact])
    assert shown is not None
    assert "inside" not in shown.decode()
    assert REDACTED in shown.decode()


def test_an_event_that_is_nested_too_deeply_to_be_redacted_is_not_shown() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    body = event(observation=0).replace(b"0", deep.encode())
    assert show(body, Masker([]).mask, [Redaction.TOOL_OUTPUT]) is None
