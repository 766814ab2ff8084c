"""What `agentsvc deploy` and `systemd` print names keys, files and commands that there are."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import agentsvc
from agentsvc.cli import cli
from agentsvc.cli.deploy import FILES
from agentsvc.config import schema as config
from agentsvc.config.layers import ConfigSource

DIRECTORY = Path(agentsvc.__file__).parent / "deploy"
ROOT = DIRECTORY.parents[1]
SETTING = re.compile(r"(AGENTSVC_\w+)[:=] *(\S+)")
CONFIG_KEY = re.compile(r"\b(?:server|sandboxes|gateway|events)\.[a-z]+_[a-z_]+\b")


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["deploy", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_file_is_listed_and_shown_as_it_is() -> None:
    assert set(FILES) == {file.name for file in DIRECTORY.iterdir()}
    listed = printed("list")
    assert {one["file"] for one in json.loads(printed("list", "--json"))} == set(FILES)
    for name in FILES:
        assert name in listed
        assert printed("show", name) == (DIRECTORY / name).read_text()
    assert CliRunner().invoke(cli, ["deploy", "show", "passwords"]).exit_code == 2


@pytest.mark.parametrize("name", ["Containerfile", "compose.yaml"])
def test_the_variables_that_a_file_sets_are_keys_of_the_configuration(name: str) -> None:
    found = {key: value.strip("\"' }") for key, value in SETTING.findall(printed("show", name))}
    origins = config.load(None, {"HOME": "/nonexistent", **found}, {}).origins
    assert found
    assert list(origins.values()).count(ConfigSource.ENVIRONMENT) == len(found)


@pytest.mark.parametrize("name", FILES)
def test_the_keys_that_a_file_speaks_of_are_there(name: str) -> None:
    known = config.load(None, {"HOME": "/nonexistent"}, {}).origins
    assert [key for key in CONFIG_KEY.findall(printed("show", name)) if key not in known] == []


def test_an_image_is_made_of_what_the_repository_has() -> None:
    copied = re.findall(
        r"^COPY (?!--from)(.*) /source", printed("show", "Containerfile"), re.MULTILINE
    )
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()


def test_containers_of_the_server_have_no_rights_and_share_its_data() -> None:
    services: dict[str, Any] = yaml.safe_load(printed("show", "compose.yaml"))["services"]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges" in service["security_opt"]
        assert "data:/data" in service["volumes"]
    assert services["agentsvc"]["volumes"] == ["data:/data"]
    assert services["agentsvc"]["ports"] == ["127.0.0.1:3000:3000"]
    assert "profiles" not in services["agentsvc"]


def test_the_commands_that_alerts_name_are_there() -> None:
    text = printed("show", "alerts.yaml")
    after = " (?:--|checks|for|revokes|shows)"
    named = re.findall(rf"agentsvc ((?:[a-z]+ )?[a-z]+){after}", text)
    assert {"plugins list", "db check", "keys revoke", "prune"} <= set(named)
    for words in named:
        result = CliRunner().invoke(cli, [*words.split(), "--help"])
        assert result.exit_code == 0, words


def test_the_routes_of_traefik_lead_to_what_is_there_with_the_alternatives_too() -> None:
    plain = printed("show", "traefik.yaml")
    whole = re.sub(r"^( +)#(?=\S|  )", r"\1", plain, flags=re.MULTILINE)
    for text, routers in ((plain, 1), (whole, 2)):
        http: dict[str, Any] = yaml.safe_load(text)["http"]
        found = http["routers"].values()
        assert len(found) == routers
        assert {router["service"] for router in found} <= http["services"].keys()
        named = {name for router in found for name in router.get("middlewares", ())}
        assert named == http.get("middlewares", {}).keys()


def test_a_unit_for_systemd_names_what_the_server_is_started_with() -> None:
    directory = r"""/srv/it's "a" $b \c %"""
    words = ["systemd", "--user", "agents", "--data-dir", directory]
    lines = set(CliRunner().invoke(cli, words).stdout.splitlines())
    place = r"""/srv/it's \"a\" $b \\c %%"""
    command = f'{sys.executable} -m agentsvc serve --data-dir "{place}"'.replace("$", "$$")
    assert {f"ExecStart={command}", f'ReadWritePaths="-{place}"', "User=agents"} <= lines
    assert {"ExecReload=/bin/kill -HUP $MAINPID", "TimeoutStartSec=infinity"} <= lines
    assert "Type=notify" in lines
