"""The words of the console: each is in the file of every language, and none is there for nothing."""

import json
import re
from pathlib import Path

import pytest

import agentsvc.http.web

STATIC = Path(agentsvc.http.web.__file__).parent / "static"
SOURCES = {file.name: file.read_text() for file in STATIC.glob("*.js")}
MARKED = re.compile(r'\bt\(("(?:[^"\\]|\\.)*")')
UNMARKED = re.compile(
    r"\b(?:(?<=Fact\} )name|label|title|hint|placeholder|aria-label|action|alt|text)="
    r'"[^"$]*[A-Za-z]{2}[^"]*"'
    r"|<(?:p|h\d|span|strong|summary|th|legend|li|dt|a|button)\b[^<>]*>\s*[A-Z][a-z]+"
)
VALUE = re.compile(r"\{\d\}")
LANGUAGES = sorted(file.stem for file in (STATIC / "words").glob("*.js"))
EXAMPLES = {'placeholder="anthropic/claude-sonnet-4-5"', 'placeholder="https://"'}


def words_of(language: str) -> dict[str, str]:
    text = (STATIC / "words" / f"{language}.js").read_text()
    table = text.partition("export default ")[2].strip().removesuffix(";")
    words: dict[str, str] = json.loads(re.sub(r",\s*\}$", "}", table))
    return words


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_the_words_that_there_are_and_no_others(language: str) -> None:
    shown = {json.loads(found) for text in SOURCES.values() for found in MARKED.findall(text)}
    words = words_of(language)
    assert set(words) == shown
    for english, other in words.items():
        assert sorted(VALUE.findall(english)) == sorted(set(VALUE.findall(other))), english
        assert other.strip(), english


def test_what_is_shown_is_marked_to_be_translated() -> None:
    found = {
        (name, unmarked) for name, text in SOURCES.items() for unmarked in UNMARKED.findall(text)
    }
    assert {one for one in found if one[1] not in EXAMPLES} == set()
