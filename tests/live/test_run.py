"""`agentsvc run` as a person meets it: with no server, on a directory, with a real agent."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentsvc.testing.llm import ScriptedModel
from tests.live.scripts import run

pytestmark = [pytest.mark.live, pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="session")]


async def test_a_run_without_a_server_changes_a_directory_and_leaves_nothing_else(
    model: ScriptedModel, tmp_path: Path
) -> None:
    project, temporary = tmp_path / "project", tmp_path / "t"
    project.mkdir()
    temporary.mkdir()
    (project / "kept.txt").write_text("kept\n")
    (project / "old.txt").write_text("old\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentsvc", "run", "-", "--dir", str(project), "--yes", "--json"),
        *("--model", "openai/scripted", "--base-url", model.url, "--private"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **{name: value for name, value in os.environ.items() if "AGENTSVC" not in name},
            "HOME": str(tmp_path),
            "TMPDIR": str(temporary),
            "LLM_API_KEY": model.key.reveal(),
        },
    )
    task = run("cat kept.txt", "echo new > new.txt", "rm old.txt")
    stdout, stderr = await process.communicate(task.encode())
    assert process.returncode == 0, stderr.decode()
    assert {path.name: path.read_text() for path in project.iterdir()} == {
        "kept.txt": "kept\n",
        "new.txt": "new\n",
    }
    records = [json.loads(line) for line in stdout.splitlines()]
    assert records[-1]["outcome"] == "finished"
    assert list(temporary.iterdir()) == []


async def test_a_run_whose_terminal_is_closed_leaves_no_server(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentsvc", "run", "x", "--private"),
        *("--model", "openai/none", "--base-url", "http://127.0.0.1:1"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(temporary)},
    )
    assert process.stderr is not None
    assert b"starting a private server" in await process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    await process.communicate()
    assert process.returncode == -signal.SIGHUP
    assert list(temporary.iterdir()) == []
