"""The recipes for clients of the API do what they say, against a server with a real agent."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from agentsvc.testing.llm import MODEL
from tests.docs.pages import text_of
from tests.live.client import LiveClient
from tests.live.clients.published import Client
from tests.live.installation import Installation, eventually

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

PAGE = text_of("recipes")
RECIPE = re.compile(
    r"^## (?P<generation>V\d)$|^### \w+\n\n```(?P<language>\w+)\n(?P<code>.*?)```",
    re.MULTILINE | re.DOTALL,
)
_AT_ONCE = 2
_COMMANDS = ("sh", "python", "typescript")
_MODULE = """
import { readFileSync } from "node:fs"
import { transform } from "sucrase"
const code = readFileSync(process.argv[1], "utf8")
process.stdout.write(transform(code, { transforms: ["typescript"], disableESTransforms: true }).code)
"""


def recipes() -> dict[tuple[str, str], str]:
    """Return the code of the page by generation and language."""
    found: dict[tuple[str, str], str] = {}
    generation = ""
    for match in RECIPE.finditer(PAGE):
        generation = match["generation"] or generation
        if match["language"]:
            found[generation, match["language"]] = match["code"]
    return found


async def test_every_recipe_does_what_it_says(
    client: LiveClient, shared: Installation, javascript: Client, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "AGENTSVC_URL": shared.url,
        "AGENTSVC_API_KEY": shared.key.reveal(),
        "LLM_MODEL": f"openai/{MODEL}",
        "LLM_API_KEY": client.model.key.reveal(),
        "LLM_BASE_URL": client.model.url,
    }
    found = recipes()
    assert set(found) == {(one, name) for one in ("V0", "V1") for name in _COMMANDS}
    files = [
        await _lay(tmp_path / f"{generation}.{language}", code, javascript)
        for (generation, language), code in found.items()
    ]
    before = set(shared.sandbox_dirs())
    turns = asyncio.Semaphore(_AT_ONCE)
    printed = await asyncio.gather(*(_run(file, environment, turns) for file in files))
    for text in printed:
        assert "Hello from the sandbox" in text or "print(" in text, text
    await eventually(lambda: set(shared.sandbox_dirs()) <= before, "the sandboxes are removed")


async def _lay(file: Path, code: str, javascript: Client) -> Path:
    """Write a program and return what is to be run: one in TypeScript without its types."""
    _write(file, code)
    if file.suffix != ".typescript":
        return file
    options = ("--input-type=module", "-e", _MODULE, str(file))
    plain = file.with_suffix(".mjs")
    _write(plain, await javascript.call(*javascript.command, *options))
    return plain


def _write(file: Path, text: str) -> None:
    file.write_text(text)


async def _run(file: Path, environment: dict[str, str], turns: asyncio.Semaphore) -> str:
    async with turns:
        return await _output_of(file, environment)


async def _output_of(file: Path, environment: dict[str, str]) -> str:
    program = {".sh": "bash", ".python": sys.executable, ".mjs": "node"}[file.suffix]
    process = await asyncio.create_subprocess_exec(
        program,
        str(file),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode(errors="replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{file.name} ended with {process.returncode}:\n{output}"
    return output
