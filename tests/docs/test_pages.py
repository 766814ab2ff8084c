"""What pages say is true as far as a machine can tell: links, commands, paths, keys, examples."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from agentsvc.app import published_routes
from agentsvc.base.bus import Subject
from agentsvc.cli import cli
from agentsvc.config.layers import known_keys
from agentsvc.config.schema import Config, with_sections
from agentsvc.http.path_parts import plain_path
from agentsvc.plugin import EVENT_KINDS
from agentsvc.plugin.files import sections
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.sandboxes.registry import BackendRegistry
from tests.docs.generate import PARTS, REFERENCE, fill, measure
from tests.docs.pages import (
    DOCS,
    PAGES,
    Block,
    anchors_of,
    blocks,
    blocks_of,
    codes_of,
    links_of,
    prose_of,
    text_of,
)
from tests.service import Client

WHOLE = with_sections(sections())
ROUTES = published_routes(
    Config(
        extensions={
            name: {"enabled": True}
            for name in ("runtime_api", "sharing", "mcp_server", "sign_in", "acp_agent")
        }
    )
)
COMMAND_LINES = sorted(
    {
        (block.page, line)
        for block in blocks("", "sh")
        for line in block.code.splitlines()
        if line.startswith("agentsvc ")
    }
)
REQUEST = re.compile(r"(?:(GET|POST|PUT|PATCH|DELETE) )?(/[a-z][\w\-./{}*]*)(?:\?.*)?")
SERVED = ("/api/", "/oauth/", "/metrics", "/openapi.json")
OF_GIT_HOSTS = {"/api/v1", "/api/v3", "/api/v4", "/api/graphql"}
"""Where the APIs of others begin, which the page about git providers names."""


def block_id(block: Block) -> str:
    return f"{block.page}-{block.kind or 'plain'}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    broken = []
    for link in links_of(page):
        if link.startswith("https://"):
            continue
        path, _, fragment = link.partition("#")
        target = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        is_there = target.exists() and (not fragment or fragment in anchors_of(target))
        if not is_there:
            broken.append(link)
    assert broken == []


def test_every_page_of_the_guide_is_in_its_contents() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links_of("index")}
    pages = {file.resolve() for name, file in PAGES.items() if name not in ("README", "SCALE")}
    assert pages - linked == {(DOCS / "index.md").resolve()}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title(page: str) -> None:
    text = text_of(page)
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", "".join(prose_of(page)), re.MULTILINE)) == 1


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_is_in_the_reference(name: str) -> None:
    assert f"## agentsvc {name}\n" in text_of("reference/cli")


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES)
def test_a_command_line_is_understood(page: str, line: str) -> None:
    words = line.partition("#")[0].partition("|")[0].split()[1:]
    names = [word for word in words if re.fullmatch(r"[a-z][a-z-]+", word)]
    options = {word for word in words if word.startswith("--")}
    shown = CliRunner().invoke(cli, [*names[:2], "--help"])
    if shown.exit_code != 0:
        shown = CliRunner().invoke(cli, [*names[:1], "--help"])
    assert shown.exit_code == 0
    assert options <= set(re.findall(r"--[a-z-]+", shown.output))


@pytest.mark.parametrize("page", [name for name in PAGES if name != "changes"])
def test_every_configuration_key_that_is_named_exists(page: str) -> None:
    known = set(WHOLE.__struct_fields__) - {"backends", "specs"}
    named = [
        code
        for code in codes_of(page)
        if (found := re.fullmatch(r"([a-z_0-9]+)\.([a-z_]+)", code)) and found[1] in known
        if found[2] not in ("changed", "event", "deleted", "toml")
    ]
    assert set(named) <= {*known_keys(WHOLE), *(f"{one}.*" for one in known)}


@pytest.mark.parametrize("page", [name for name in PAGES if name not in ("changes", "SCALE")])
def test_every_path_that_is_named_is_served(page: str) -> None:
    named = [found for code in codes_of(page) if (found := REQUEST.fullmatch(code))]
    unknown = [
        found[0]
        for found in named
        if found[2].startswith(SERVED) and not finds(found[1], found[2])
        if page != "how-to/git" or found[2] not in OF_GIT_HOSTS
    ]
    assert unknown == []


def finds(method: str | None, path: str) -> bool:
    """Whether there is such an operation, or without a method several that begin so."""
    if method is None and any(route.path.startswith(path.rstrip("*/")) for route in ROUTES):
        return True
    return any(
        fits(plain_path(route.path), path) and method in (None, route.method) for route in ROUTES
    )


def fits(template: str, path: str) -> bool:
    parts, others = template.strip("/").split("/"), path.strip("/").split("/")
    return len(parts) == len(others) and all(
        one == other or "{" in one for one, other in zip(parts, others, strict=True)
    )


def requests_of(block: Block) -> list[tuple[str, str]]:
    """Return method and path of what a shell block asks, what varies put into one form."""
    found = []
    text = block.code.replace("\\\n", " ")
    for known, path in re.findall(
        r"(-X \w+ )?[\"']?\$\{?(?:AGENTSVC_URL|URL)\}?(/[^\s\"']*)", text
    ):
        rest = text[text.index(path) :].partition("curl ")[0]
        method = known.removeprefix("-X ").strip()
        posts = " -d " in rest.partition("\n\n")[0]
        found.append(
            (method or ("POST" if posts else "GET"), re.sub(r"\$\w+", "x", path.partition("?")[0]))
        )
    return found


@pytest.mark.parametrize("page", ["README", "tutorial"])
def test_the_first_conversation_uses_nothing_that_is_deprecated(page: str) -> None:
    asked = [one for block in blocks_of(page) for one in requests_of(block)]
    assert len(asked) >= 3
    for method, path in asked:
        found = [one for one in ROUTES if one.method == method and fits(plain_path(one.path), path)]
        assert found, (method, path)
        assert not any(route.is_deprecated for route in found)


@pytest.mark.parametrize("block", blocks("toml"), ids=block_id)
def test_an_example_of_the_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    if block.page == "plugins":
        pytest.skip("it is of two files, and of a package that is not there")
    config = msgspec.convert(tomllib.loads(block.code), WHOLE)
    assert isinstance(config, Config)
    BackendRegistry.build(PluginHost.load(), config, instance_id="i", state_dir=tmp_path)


@pytest.mark.parametrize("block", blocks("sh"), ids=block_id)
def test_a_shell_example_is_shell(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)


# That of the page of Kubernetes is held to its schemas, by a test of that page.
@pytest.mark.parametrize(
    "block", [one for one in blocks("yaml") if one.page != "how-to/kubernetes"], ids=block_id
)
def test_an_example_in_yaml_is_yaml(block: Block) -> None:
    parts = list(yaml.safe_load_all(block.code))
    assert all(part.get("kind") or part["scrape_configs"] for part in parts)


def test_nginx_takes_the_example_for_it(tmp_path: Path) -> None:
    [block] = blocks("nginx")
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if nginx is None:
        pytest.skip("there is no nginx here")
    paths = "".join(
        f"{name}_temp_path {tmp_path}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    server = f"server {{ listen 127.0.0.1:1; {block.code} }}"
    file = tmp_path / "nginx.conf"
    file.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; {paths} {server} }}")
    options = ["-t", "-c", str(file), "-e", str(tmp_path / "errors"), "-p", str(tmp_path)]
    result = subprocess.run([nginx, *options], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", PARTS)
def test_every_generated_page_is_as_the_code_has_it(name: str) -> None:
    part, render = PARTS[name]
    text = (REFERENCE / name).read_text()
    assert fill(part, render(), text) == text


async def test_the_page_of_the_metrics_is_what_a_server_tells(client: Client) -> None:
    text = (REFERENCE / "metrics.md").read_text()
    assert fill("metrics", await measure(client), text) == text


def test_the_glossary_is_sorted_and_of_a_size_that_one_reads() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", text_of("contributing/glossary"), re.MULTILINE)
    assert terms == sorted(terms, key=str.lower)
    assert 40 <= len(terms) <= 60


@pytest.mark.parametrize("page", [name for name in PAGES if name != "changes"])
def test_a_file_of_the_repository_that_is_named_is_there(page: str) -> None:
    named = [
        code
        for code in codes_of(page)
        if re.fullmatch(r"(agentsvc|plugins|tests|\.ci)/[\w./*-]*[./][\w./*-]*", code)
    ]
    top = DOCS.parents[1]
    assert [one for one in named if not list(top.glob(one.rstrip("/")))] == []


def event_flow() -> str:
    return text_of("explanation/event-flow")


def test_the_event_flow_names_every_subject_of_the_bus_and_every_trigger() -> None:
    schema = (DOCS.parent / "storage" / "migrations" / "schema.sql").read_text()
    tables = set(re.findall(r"^CREATE TRIGGER \w+ AFTER \w+ ON (\w+)", schema, re.MULTILINE))
    named = set(codes_of("explanation/event-flow"))
    assert {str(one) for one in Subject} <= named
    assert tables <= named


def source_of_package() -> str:
    places = (DOCS.parent, DOCS.parents[1] / "plugins")
    files = sorted(file for place in places for file in place.rglob("*.py"))
    return "\n".join(file.read_text("utf-8") for file in files)


def test_the_event_flow_names_every_kind_that_plugins_hear() -> None:
    listed = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", event_flow(), re.MULTILINE)
    assert set(listed) == set(EVENT_KINDS)


def test_the_architecture_lists_every_loop() -> None:
    loops = set(re.findall(r'(?:\.loop\(\s*|yield )"([a-z ]+)",', source_of_package()))
    assert len(loops) > 10
    section = text_of("explanation/architecture").partition("Background loops")[2]
    listed = re.findall(r"`([^`]+)`", section.partition("\n## ")[0])
    assert set(listed) == loops
