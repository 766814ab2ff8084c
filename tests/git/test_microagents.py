"""Where microagents are, and what their heads say."""

import pytest

from agentsvc.domain.orders import Provider
from agentsvc.git.microagents import directory_of, read_microagent


@pytest.mark.parametrize(
    ("repository", "provider", "directory"),
    [
        ("a/b", Provider.GITHUB, ".openhands/microagents"),
        ("a/.openhands", Provider.GITHUB, "microagents"),
        ("a/.openhands.git", Provider.FORGEJO, "microagents"),
        ("a/.openhands", Provider.GITLAB, ".openhands/microagents"),
        ("a/b/openhands-config", Provider.GITLAB, "microagents"),
        ("a/openhands-config", Provider.GITHUB, ".openhands/microagents"),
    ],
)
def test_a_repository_has_a_directory_for_them(
    repository: str, provider: Provider, directory: str
) -> None:
    assert directory_of(repository, provider) == directory


@pytest.mark.parametrize(
    ("text", "content", "triggers"),
    [
        ("just text\n", "just text\n", []),
        ("---\nname: a\n---\nbody\n", "body", []),
        ("---\ntriggers:\n- a\n-   'b c'\nname: x\n---\nbody", "body", ["a", "b c"]),
        ("---\ntriggers:\n  - a\n  - b\n---\n", "", ["a", "b"]),
        ('---\ntriggers: [a, "b c", ]\n---\nbody', "body", ["a", "b c"]),
        ("---\ntriggers: []\n---\nbody", "body", []),
        ("---\r\ntriggers:\r\n- a\r\n---\r\nbody", "body", ["a"]),
        ("---\nno end", "---\nno end", []),
        ("text\n---\ntriggers:\n- a\n---\n", "text\n---\ntriggers:\n- a\n---\n", []),
    ],
)
def test_the_head_is_taken_off_and_read(text: str, content: str, triggers: list[str]) -> None:
    found = read_microagent(text)
    assert (found.content, found.triggers) == (content, triggers)
