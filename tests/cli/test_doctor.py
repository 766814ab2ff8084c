import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentsvc.cli import cli
from agentsvc.cli.doctor.environment import check_models
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.schema import Config
from agentsvc.storage.database_file import lock_data_dir
from agentsvc.storage.installation import Installation

CLEAN = dict.fromkeys(
    (
        *("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"),
        *("NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DOCKER_HOST", "LLM_BASE_URL"),
    )
)


def call(path: Path, *options: str, **environment: str) -> Result:
    arguments = ["doctor", "--data-dir", str(path), *options]
    return CliRunner(env={**CLEAN, **environment}).invoke(cli, arguments)


def look(path: Path, **environment: str) -> dict[str, tuple[str, str, str]]:
    """Return the grade, the text and the remedy of each thing that was looked at."""
    result = call(path, "--json", AGENTSVC_SERVER__PORT="0", **environment)
    found = {
        one["name"]: (one["grade"], one["text"], one["remedy"]) for one in json.loads(result.stdout)
    }
    assert result.exit_code == int("error" in {grade for grade, _, _ in found.values()})
    return found


@contextmanager
def answering(listener: socket.socket, answer: bytes | Callable[[bytes], bytes]) -> Iterator[None]:
    """Give every connection the same answer, or the one for what it asks."""

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                asked = connection.recv(65536)
                if not asked:
                    return
                connection.sendall(answer if isinstance(answer, bytes) else answer(asked))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        with socket.socket(listener.family) as last:
            last.connect(listener.getsockname())
        thread.join()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    async def make(places: DataDirectory) -> None:
        await (await Installation.open(places)).close()

    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    asyncio.run(make(places))
    return places.path


def test_a_machine_without_an_installation_is_told_what_is_there(tmp_path: Path) -> None:
    found = look(tmp_path / "none")
    assert {"python", "extra agent", "cgroups", "container engine"} <= found.keys()
    assert found["data directory"][0] == "ok"
    assert found["proxies"][0] == "ok"
    assert found["port"][0] == "ok"


def test_what_cannot_be_looked_at_is_a_problem_and_no_end(tmp_path: Path) -> None:
    # What root may not look at, either.
    there = tmp_path / ("a" * 300)
    found = look(there)
    assert found["permissions"][:2] == (
        "error",
        f"the check failed: File name too long: {there}",
    )
    assert found["proxies"][0] == "ok"


def test_people_read_what_is_wrong_and_how_to_fix_it(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "master.key").chmod(0o644)
    result = call(data_dir, NO_COLOR="1", SSL_CERT_FILE=str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert f"error data directory: other users can read {data_dir}/master.key\n" in result.stdout
    assert f"      fix: chmod -R go= {data_dir}\n" in result.stdout
    assert "error SSL_CERT_FILE: " in result.stdout
    assert "error: problems found: " in result.stderr
    assert "\x1b" not in result.output


def test_what_keeps_the_server_from_starting_comes_with_its_own_remedy(data_dir: Path) -> None:
    (data_dir / "master.key").write_text("no key")
    grade, text, remedy = look(data_dir)["database"]
    assert (grade, "does not hold a key" in text) == ("error", True)
    assert "restore it from a backup" in remedy


def test_a_port_that_is_taken_is_told_unless_the_server_has_it(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = call(data_dir, "--json", AGENTSVC_SERVER__PORT=port)
        assert "agentsvc serve --port" in result.stdout
        with lock_data_dir(data_dir):
            running = call(data_dir, "--json", AGENTSVC_SERVER__PORT=port)
    assert "a server runs on the data directory" in running.stdout


def test_the_port_is_looked_for_at_the_address_that_a_server_takes(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        addresses = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", address[1], 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", address),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kw: addresses)
        result = call(data_dir, "--json", AGENTSVC_SERVER__PORT=str(address[1]))
    [found] = [one for one in json.loads(result.stdout) if one["name"] == "port"]
    assert found["grade"] == "error"


def test_a_host_that_is_none_is_told(data_dir: Path) -> None:
    grade, text, _ = look(data_dir, AGENTSVC_SERVER__HOST="a..b")["port"]
    assert (grade, text) == ("error", "`a..b` is not an address of this machine")


def test_a_model_whose_host_has_a_name_that_none_can_have_is_told(data_dir: Path) -> None:
    grade, text, _ = look(data_dir, LLM_BASE_URL=f"http://{'a' * 70}.example/v1")["model"]
    assert grade == "error"
    assert text.startswith(f"{'a' * 70}.example:80 cannot be reached: ")
    environ = {"LLM_BASE_URL": "https://a.example/v1", "HTTPS_PROXY": "http://b:99999"}
    assert look(data_dir, **environ)["model"][0] == "error"


@pytest.mark.parametrize(("direct", "is_asked"), [("localhost", True), (".example", False)])
def test_a_model_is_asked_by_a_proxy_with_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: str, *, is_asked: bool
) -> None:
    asked = []

    def answer(request: bytes) -> bytes:
        asked.append(request)
        return b"HTTP/1.1 200 OK\r\n\r\n"

    with socket.create_server(("127.0.0.1", 0)) as proxy, answering(proxy, answer):
        url = f"http://me:p%40ss@127.0.0.1:{proxy.getsockname()[1]}"
        found = {"HTTPS_PROXY": url, "LLM_BASE_URL": "https://a.example/v1", "NO_PROXY": direct}
        for name in CLEAN:
            monkeypatch.delenv(name, raising=False)
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        list(check_models(Config(), DataDirectory(path=tmp_path)))
    login = b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss")
    assert [login in one for one in asked] == [True] * is_asked


def test_a_proxy_has_to_answer_and_to_leave_this_machine_out(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        found = look(data_dir, HTTPS_PROXY=url, NO_PROXY="example.org")
    assert found["HTTPS_PROXY"][0] == "ok"
    assert found["NO_PROXY"][0] == "error"
    assert found["NO_PROXY"][2] == "export NO_PROXY=localhost,127.0.0.1,example.org"
    gone = look(data_dir, HTTPS_PROXY=url, NO_PROXY="localhost")
    assert gone["HTTPS_PROXY"][0] == "error"
    assert gone["NO_PROXY"][0] == "ok"


def test_a_model_that_answers_tells_how_wrong_the_clock_is(data_dir: Path) -> None:
    answer = b"HTTP/1.0 404 Not Found\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as model:
        address = f"127.0.0.1:{model.getsockname()[1]}"
        with answering(model, answer):
            found = look(data_dir, LLM_BASE_URL=f"http://{address}/v1")
    assert found["model"] == ("ok", f"{address} responds", "")
    assert (found["clock"][0], found["clock"][2]) == ("error", "timedatectl set-ntp true")
    away = look(data_dir, LLM_BASE_URL=f"http://{address}/v1")
    assert away["model"][0] == "error"
    assert away["clock"] == (
        "note",
        "no model host has sent its time, so the clock was not compared",
        "timedatectl",
    )


def test_a_container_engine_is_asked(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a socket is short, however long the path to it is.
    monkeypatch.chdir(tmp_path)
    path = "engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        with answering(engine, b"HTTP/1.0 200 OK\r\n\r\nOK"):
            assert look(data_dir, DOCKER_HOST=f"unix://{path}")["container engine"][0] == "ok"
    assert look(data_dir, DOCKER_HOST=f"unix://{path}")["container engine"][0] == "note"
    assert look(data_dir, DOCKER_HOST="tcp://far:1")["container engine"][0] == "note"


def test_less_isolation_than_the_default_is_an_error(tmp_path: Path) -> None:
    grade, text, _ = look(tmp_path)["isolation of `process`"]
    assert (grade, text) == ("ok", "bubblewrap")
    found = look(tmp_path, PATH=str(tmp_path), AGENTSVC_SANDBOXES__ISOLATION="none")
    grade, text, remedy = found["isolation of `process`"]
    assert grade == "error"
    assert "instead of `bubblewrap`: bubblewrap is not installed" in text
    assert remedy.startswith("apt install bubblewrap")
    grade, text, _ = found["fork server of `process`"]
    assert grade == "note"
    assert text.startswith("none: bubblewrap does not work here")


def test_memory_that_can_go_nowhere_is_noted(tmp_path: Path) -> None:
    swap = Path("/proc/meminfo").read_text().split("SwapFree:")[1].split()[0]
    if swap != "0":
        pytest.skip("this machine has swap")
    name = "paused memory of `process`"
    assert name not in look(tmp_path)
    grade, text, _ = look(tmp_path, AGENTSVC_SANDBOXES__RECLAIM_AFTER_SECONDS="60")[name]
    assert grade == "note"
    assert "only pauses: this machine has no swap" in text


def test_memory_that_no_disk_takes_is_noted(tmp_path: Path) -> None:
    name = "paused memory of `process`"
    assert name not in look(tmp_path)
    grade, text, _ = look(tmp_path, AGENTSVC_SANDBOXES__HIBERNATE_AFTER_SECONDS="60")[name]
    assert grade == "note"
    assert "CRIU, which could write their memory to disk, is not used with bubblewrap" in text


def test_the_network_of_the_host_is_noted(tmp_path: Path) -> None:
    assert "network of `process`" not in look(tmp_path)
    found = look(tmp_path, AGENTSVC_BACKENDS__PROCESS__NETWORK="host")
    grade, text, _ = found["network of `process`"]
    assert grade == "note"
    assert '`network = "host"`' in text


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6 here")
def test_an_address_where_sandboxes_do_not_find_the_server_is_noted(tmp_path: Path) -> None:
    found = look(tmp_path, AGENTSVC_SERVER__HOST="::1")
    grade, text, remedy = found["network of `process`"]
    assert (grade, " is not at 127.0.0.1 or localhost: ::1:" in text) == ("note", True)
    assert "server.internal_url" in remedy
