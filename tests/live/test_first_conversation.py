"""The requests of the README and of the tutorial do what they say, with a real agent."""

import pytest

from agentsvc.testing.llm import MODEL
from tests.docs.pages import blocks_of
from tests.live.client import LiveClient
from tests.live.installation import Installation, eventually
from tests.live.shell import shell

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

STREAM_SECONDS = 240


async def test_the_first_conversation_of_the_readme(
    client: LiveClient, shared: Installation
) -> None:
    [code] = [block.code for block in blocks_of("README") if "events/stream" in block.code]
    here = {
        "http://127.0.0.1:3000": shared.url,
        "asvc_…": shared.key.reveal(),
        "anthropic/claude-sonnet-4-5": f"openai/{MODEL}",
        '"llm_api_key": "sk-…"': f'"llm_api_key": "{client.model.key.reveal()}",'
        f' "llm_base_url": "{client.model.url}"',
        # It goes on until somebody ends it.
        "curl -N": f"curl -sN --max-time {STREAM_SECONDS}",
    }
    for old, new in here.items():
        assert old in code
        code = code.replace(old, new)
    stream = " | sed '/\"finished\"/q'\n"
    output = await shell(code.rstrip() + stream)
    assert '"status":"WORKING"' in output
    assert "Write a poem into poem.txt" in output
    assert '"finished"' in output


async def test_the_tutorial(client: LiveClient, shared: Installation) -> None:
    named = {block.name: block.code for block in blocks_of("tutorial") if block.name}
    assert list(named) == ["model", "test-model", "start", "read", "more"]
    before = set(shared.sandbox_dirs())
    output = await shell(
        "\n".join(named.values()),
        AGENTSVC_URL=shared.url,
        AGENTSVC_API_KEY=shared.key.reveal(),
        LLM_MODEL=f"openai/{MODEL}",
        LLM_API_KEY=client.model.key.reveal(),
        LLM_BASE_URL=client.model.url,
    )
    assert "Hello from the sandbox" in output or "print(" in output, output
    await eventually(lambda: set(shared.sandbox_dirs()) <= before, "the sandbox is removed")
