"""What a start with a prepared environment takes beyond an empty one, by how its files get there.

A live server prepares an environment of many files, and conversations on its repository are started with
it and without, in turns, from the request to READY. That is done with overlayfs, with copies, and with
copies on btrfs, which share their blocks; what this machine does not have is left out.
"""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from agentsvc.base.values import monotonic
from agentsvc.testing.llm import ScriptedModel
from tests.git_server import GitServer
from tests.live.client import LiveClient
from tests.live.installation import Installation, eventually
from tests.live.test_repositories import provider

_PATIENCE_SECONDS: Final = 900.0
_PATH: Final = "/api/v1/environments"
_REPOSITORY: Final = "acme/site"
_MAKE: Final = """
import os, sys
files, size = map(int, sys.argv[1:])
for number in range(files):
    if number % 20 == 0:
        directory = f"node_modules/p{number // 2000}/q{number // 20}"
        os.makedirs(directory)
    with open(f"{directory}/{number}.js", "wb") as file:
        file.write(os.urandom(64) * (size // 64))
"""
_ZYGOTE: Final = {"AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "true"}
_PATIENT: Final = {
    "AGENTSVC_SANDBOXES__START_SECONDS": "600",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_SECONDS": "80",
    "AGENTSVC_SANDBOXES__CALL_SECONDS": "100",
}
_COPIES: Final = {"AGENTSVC_BACKENDS__PROCESS__USE_OVERLAYFS": "false"}


@click.command()
@click.option("--files", default=120_000, help="How many files are prepared.")
@click.option("--mebibytes", default=2048, help="How much they take together.")
@click.option("--rounds", default=3, help="Starts of each kind.")
@click.option("--only", type=click.Choice(["overlayfs", "copy", "btrfs"]), multiple=True)
def main(files: int, mebibytes: int, rounds: int, only: tuple[str, ...]) -> None:
    """Print what starts take, and how much more those with the environment take."""
    script = _setup(files, mebibytes * 2**20 // files)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ended:
        top = Path(folder)
        ways = {
            "overlayfs": (top / "overlayfs", _ZYGOTE),
            "copy": (top / "copy", _ZYGOTE | _COPIES),
        }
        if only and "btrfs" not in only:
            pass
        elif disk := ended.enter_context(_btrfs(top, 256 + mebibytes * 4)):
            ways["btrfs"] = (disk / "data", _ZYGOTE | _COPIES)
        else:
            click.echo("btrfs: there is none here")
        for name, (directory, environment) in ways.items():
            if not only or name in only:
                directory.mkdir(mode=0o700)
                asyncio.run(_measure(name, directory, environment, (script, rounds)))
                shutil.rmtree(directory)


async def _measure(
    name: str, directory: Path, environment: dict[str, str], what: tuple[str, int]
) -> None:
    script, rounds = what
    async with ScriptedModel() as model, GitServer(directory / "git") as git_server:
        await git_server.add_repository(_REPOSITORY, {".gitignore": "node_modules\n"})
        hosts = {"AGENTSVC_GIT__PRIVATE_HOSTS": json.dumps([git_server.host])}
        own = Installation(directory, model, environment | hosts | _PATIENT)
        await own.start()
        try:
            client = own.client()
            await client.save_settings(**provider(git_server))
            order = {"name": "Site", "repository": _REPOSITORY, "provider": "gitlab"}
            began = monotonic()
            made = (await client.post(_PATH, json={**order, "setup_script": script})).json()
            ready = await _prepared(client, made["id"])
            click.echo(
                f"{name}: prepared in {monotonic() - began:.0f} s, {ready['size_bytes']} bytes"
            )
            await _start(client, "none")
            found: dict[str, list[float]] = {"none": [], ready["id"]: []}
            for _ in range(rounds):
                for environment_id, seconds in found.items():
                    seconds.append(await _start(client, environment_id))
            empty, full = (statistics.median(seconds) for seconds in found.values())
            for said, seconds in zip(("empty", "with it"), found.values(), strict=True):
                click.echo(f"  {said}: {', '.join(f'{one:.2f}' for one in seconds)} s")
            click.echo(f"  medians: {empty:.2f} and {full:.2f} s, {full - empty:+.2f} s")
        finally:
            await _clear(own)
            await own.close()


async def _clear(own: Installation) -> None:
    client, layers = own.client(), own.data.backends / "process" / ".layers"
    for one in (await client.get(_PATH)).json()["items"]:
        await client.delete(f"{_PATH}/{one['id']}")
    await eventually(lambda: not layers.exists(), "no layer is left", time_limit=_PATIENCE_SECONDS)


async def _prepared(client: LiveClient, environment_id: str) -> dict[str, Any]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            found: dict[str, Any] = (await client.get(f"{_PATH}/{environment_id}")).json()
            if found["status"] == "ready":
                return found
            if found["status"] == "failed":
                raise click.ClickException(f"{found['detail']} {found['log']}")
            await asyncio.sleep(0.2)


async def _start(client: LiveClient, environment_id: str) -> float:
    """Start a conversation, remove its sandbox, and return how long it took to be ready."""
    began = monotonic()
    task = await client.start_task(
        None,
        environment_id=environment_id,
        selected_repository=_REPOSITORY,
        git_provider="gitlab",
    )
    ended = await client.end_of_start(task["id"], time_limit=_PATIENCE_SECONDS)
    seconds = monotonic() - began
    if ended["status"] != "READY":
        raise click.ClickException(str(ended["detail"]))
    await client.delete(f"/api/v1/sandboxes/{ended['sandbox_id']}")
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            if not (await client.get("/api/v1/sandboxes/search")).json()["items"]:
                return seconds
            await asyncio.sleep(0.1)


def _setup(files: int, size: int) -> str:
    return f"cat >/tmp/make.py <<'END'\n{_MAKE}END\npython3 /tmp/make.py {files} {size}\n"


@contextlib.contextmanager
def _btrfs(top: Path, mebibytes: int) -> Iterator[Path | None]:
    """Mount a btrfs in a file of that size, where that can be done."""
    image, seen = top / "btrfs.image", top / "btrfs"
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(mebibytes * 2**20)
    subprocess.run(["mkfs.btrfs", "--quiet", str(image)], check=True)
    seen.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(seen)], check=True)
    try:
        yield seen
    finally:
        subprocess.run(["umount", str(seen)], check=True)


if __name__ == "__main__":
    main()
