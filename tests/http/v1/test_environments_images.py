"""Images of prepared environments through the socket, on a fake backend that notes what is built."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from agentsvc.plugin import Capability
from tests.git_server import GitServer
from tests.http.v1.test_environments import PATH, create, wait_for
from tests.plugin_loading import part
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually

if TYPE_CHECKING:
    from environments import images
else:
    images = part("environments.images")

type Json = dict[str, Any]

DOCKERFILE = "FROM debian:13 AS tools\nRUN make tools\nFROM debian:13\n"
FILE = {
    "build": {"dockerfile": "Dockerfile", "context": "..", "args": {"A": "${localEnv:HOME:b}"}},
    "features": {
        "ghcr.io/devcontainers/features/node:1": {"version": "22", "nvm-too": False},
    },
}


@pytest_asyncio.fixture
async def git(tmp_path: Path) -> AsyncIterator[GitServer]:
    async with GitServer(tmp_path / "git") as server:
        yield server


@pytest_asyncio.fixture
async def builder(client: Client, service: Service, tmp_path: Path, git: GitServer) -> Client:
    """Return a client of a server that builds images, whose user has a token for the git server."""
    for name, about in {
        "ghcr.io/devcontainers/features/node": {
            "options": {"version": {"default": "lts"}, "nvmToo": {"default": True}},
            "containerEnv": {"PATH": "/usr/local/node:${PATH}"},
        },
        "own": {},
    }.items():
        directory = tmp_path / "features" / name
        directory.mkdir(parents=True)
        (directory / "devcontainer-feature.json").write_text(f"// {name}\n{json.dumps(about)}")
        (directory / "install.sh").write_text("echo $VERSION")
    told = {"build_images": True, "features_dir": str(tmp_path / "features")}
    service.config = msgspec.structs.replace(service.config, extensions={"environments": told})
    await service.restart()
    return service.client_with(client.key)


async def begun_in(client: Client, world: TroubledWorld, environment: Json) -> str:
    """Return the image in which a conversation that begins with an environment runs."""
    started = await client.start_conversation(environment_id=environment["id"])
    conversation = await client.conversation(started)
    return world.sandboxes[conversation["sandbox_id"]].order.base


async def repository(client: Client, git: GitServer, files: dict[str, str]) -> Json:
    """Return what is asked for of a repository with these files."""
    known = {"token": git.token.reveal(), "host": f"http://{git.host}"}
    await client.save_settings(secrets_store={"provider_tokens": {"gitlab": known}})
    await git.add_repository("acme/site", files)
    return {"repository": "acme/site", "provider": "gitlab"}


async def test_an_image_is_what_the_environment_says(
    client: Client, fake_world: TroubledWorld
) -> None:
    ready = await wait_for(client, await create(client, image="python:3.13"), "ready")
    assert (ready["image"], ready["devcontainer"], ready["detail"]) == ("python:3.13", "auto", None)
    assert await begun_in(client, fake_world, ready) == "python:3.13"
    [begun] = (await client.get("/api/v1/app-conversations/search")).json()["items"]
    forked = await client.post(f"/api/v1/app-conversations/{begun['id']}/fork")
    assert forked.status == 200, forked.text
    await eventually(lambda: len(fake_world.sandboxes) == 2)
    assert {one.order.base for one in fake_world.sandboxes.values()} == {"python:3.13"}
    changed = await client.patch(f"{PATH}/{ready['id']}", json={"image": None})
    ready = await wait_for(client, changed.json(), "ready")
    assert await begun_in(client, fake_world, ready) == ""
    for name in ("localhost/agentsvc-environment:1", "registry.internal:5000/a"):
        failed = await wait_for(client, await create(client, image=name), "failed")
        assert failed["detail"].startswith(f"The image '{name}' may not be used")
        assert "`images` in `[environments]`" in failed["detail"]
    for bad in ("a\nUSER root", "", "../x", "a b", "x" * 300):
        assert (await client.post(PATH, json={"name": "x", "image": bad})).status == 422
    assert (await client.post(PATH, json={"name": "x", "devcontainer": "../x"})).status == 422


async def test_an_image_is_built_and_goes_with_the_last_who_has_it(
    builder: Client, git: GitServer, fake_world: TroubledWorld
) -> None:
    files = {".devcontainer/devcontainer.json": json.dumps(FILE), "Dockerfile": "FROM nowhere"}
    files[".devcontainer/Dockerfile"] = DOCKERFILE
    order = await repository(builder, git, files)
    made = await create(builder, **order)
    await wait_for(builder, made, "ready")
    [(image_id, build)] = fake_world.images.items()
    assert build.dockerfile == (
        f"{DOCKERFILE}\nUSER root\n"
        "COPY .agentsvc-features/0 /tmp/.agentsvc-features/0\n"
        "RUN cd /tmp/.agentsvc-features/0 && set -a && . ./agentsvc.env && set +a"
        " && chmod +x install.sh && ./install.sh\n"
        'ENV PATH="/usr/local/node:${PATH}"\n'
        "RUN rm -rf /tmp/.agentsvc-features\n"
    )
    assert (build.args, build.target) == ({"A": "b"}, "")
    assert await begun_in(builder, fake_world, made) == f"fake:{image_id}"

    await builder.post(f"{PATH}/{made['id']}/prepare")
    await wait_for(builder, made, "ready")
    # The conversation that began with the first one still has it.
    await eventually(lambda: len(fake_world.images) == 2)
    [conversation] = (await builder.get("/api/v1/app-conversations/search")).json()["items"]
    await builder.delete(f"/api/v1/sandboxes/{conversation['sandbox_id']}")
    await builder.delete(f"{PATH}/{(await create(builder, name='Other'))['id']}")
    await eventually(lambda: image_id not in fake_world.images and len(fake_world.images) == 1)
    assert (await builder.delete(f"{PATH}/{made['id']}")).status == 200
    await eventually(lambda: not fake_world.images)


async def test_features_that_the_operator_does_not_have_are_named(
    builder: Client, git: GitServer, fake_world: TroubledWorld
) -> None:
    asked: Json = {
        "ghcr.io/devcontainers/features/node:1": {},
        "ghcr.io/x/lost:2": {},
        "../../etc": {},
    }
    file = json.dumps({"image": "debian:13", "features": asked})
    order = await repository(builder, git, {".devcontainer.json": file})
    failed = await wait_for(builder, await create(builder, **order), "failed")
    assert failed["detail"] == (
        "Features that are not in this server's `features_dir`: `ghcr.io/x/lost:2`, `../../etc`"
    )
    assert fake_world.images == {}


async def test_nothing_is_built_unless_the_operator_says_so(
    client: Client, git: GitServer, fake_world: TroubledWorld
) -> None:
    file = json.dumps({"build": {"dockerfile": "Dockerfile"}})
    order = await repository(client, git, {".devcontainer.json": file, "Dockerfile": DOCKERFILE})
    failed = await wait_for(client, await create(client, **order), "failed")
    assert "`build_images = true` in `[environments]`" in failed["detail"]
    assert fake_world.images == {}
    without = await client.patch(f"{PATH}/{failed['id']}", json={"devcontainer": "none"})
    await wait_for(client, without.json(), "ready")
    # What is named wins over what would have to be built.
    named = {"image": "debian:13", "devcontainer": "auto"}
    changed = await client.patch(f"{PATH}/{failed['id']}", json=named)
    ready = await wait_for(client, changed.json(), "ready")
    assert await begun_in(client, fake_world, ready) == "debian:13"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ({"dockerfile": "lost"}, "The repository has no file `lost`"),
        ({"dockerfile": "Dockerfile", "context": "lost"}, "There is no directory `lost`"),
        ({"dockerfile": "../Dockerfile"}, "names a path outside of the repository"),
        ({"dockerfile": "Dockerfile", "context": "../.."}, "names a path outside"),
        ({"dockerfile": "Empty"}, "The image cannot be built: no FROM"),
    ],
)
async def test_what_cannot_be_built_says_why(
    builder: Client, git: GitServer, fake_world: TroubledWorld, build: Json, reason: str
) -> None:
    files = {
        ".devcontainer.json": json.dumps({"build": build}),
        "Dockerfile": DOCKERFILE,
        "Empty": " ",
    }
    order = await repository(builder, git, files)
    failed = await wait_for(builder, await create(builder, **order), "failed")
    assert reason in failed["detail"]
    await eventually(lambda: not fake_world.sandboxes and not fake_world.images)


async def test_a_backend_without_images_says_so(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities -= {Capability.IMAGES}
    await service.restart()
    answer = await client.post(PATH, json={"name": "x", "image": "debian:13"})
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert "has no images" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("debian", "docker.io/library/debian"),
        ("acme/site:1", "docker.io/acme/site:1"),
        ("ghcr.io/acme/site@sha256:0", "ghcr.io/acme/site@sha256:0"),
        ("localhost/a", "localhost/a"),
        ("host:5000/a", "host:5000/a"),
    ],
)
def test_the_registry_of_an_image_is_known(image: str, full: str) -> None:
    assert images.full_name(image) == full
