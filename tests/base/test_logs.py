import asyncio
import io
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from agentsvc.base import logs
from agentsvc.base.logs import CURRENT_REQUEST, Masker
from agentsvc.base.values import MASK, Secret, dashed, new_id, new_key

log = logging.getLogger("agentsvc.test")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in ("aiohttp.access", "asyncio")}
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, was in quiet.items():
        logging.getLogger(name).setLevel(was)


def as_json(stream: io.StringIO) -> dict[str, Any]:
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    parsed: dict[str, Any] = json.loads(lines[0])
    return parsed


def test_a_text_line_has_time_level_message_and_facts() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream=stream)
    log.info("sandbox created", extra={"sandbox_id": "s1", "reason": "two words", "empty": ""})
    line = stream.getvalue()
    assert ' INFO    sandbox created sandbox_id=s1 reason="two words" empty=""\n' in line
    assert line[:4].isdigit()
    assert "logger=" not in line


def test_a_line_of_a_library_names_its_logger() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream=stream)
    logging.getLogger("aiohttp.server").warning("odd")
    assert stream.getvalue().endswith("WARNING odd logger=aiohttp.server\n")


def test_a_json_line_is_one_object() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    log.warning("slow %s", "call", extra={"duration_ms": 12.5, "key": Secret("x"), "level": "own"})
    line = as_json(stream)
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "agentsvc.test",
        "message": "slow call",
        "duration_ms": 12.5,
        "key": MASK,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_request_id_is_in_the_lines_of_its_request_only(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream=stream)
    token = CURRENT_REQUEST.set("r-17")
    log.info("inside")
    CURRENT_REQUEST.reset(token)
    log.info("outside")
    inside, outside = stream.getvalue().splitlines()
    assert "r-17" in inside
    assert "request_id" not in outside


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_comes_with_the_line(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream=stream)
    try:
        int("cause")
    except ValueError:
        log.exception("failed", stack_info=True)
    text = stream.getvalue()
    assert "ValueError: invalid literal" in text
    assert "Traceback" in text
    assert "Stack (most recent call last)" in text
    if form == "json":
        assert "ValueError: invalid literal" in as_json(stream)["exception"]


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    logs.configure("warning", "text", stream=stream)
    log.info("no")
    log.warning("yes")
    assert stream.getvalue().count("\n") == 1


def test_libraries_that_log_values_stay_quiet_at_debug() -> None:
    stream = io.StringIO()
    logs.configure("debug", "text", stream=stream)
    logging.getLogger("aiohttp.access").debug("GET /?key=secret")
    logging.getLogger("asyncio").debug("selector")
    log.debug("ours")
    assert stream.getvalue().count("\n") == 1


def test_a_value_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream=stream)
    log.info("name %s", "a\nERROR forged\x1b[31m", extra={"fact": 'b\r\n"c" d=e'})
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert r"name a\nERROR forged\x1b[31m" in line
    assert r'fact="b\r\n\"c\" d=e"' in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_text_that_is_no_unicode_is_written_all_the_same(form: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream=stream)
    log.info("name \ud800", extra={"fact": "\udfff"})
    assert "d800" in stream.getvalue()
    assert "dfff" in stream.getvalue()
    assert stream.getvalue().encode()


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param(new_key("asvc_").reveal(), id="ours"),
        "sk-proj-0123456789abcdefghij",
        "tvly-dev-0123456789abcdefghij",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "github_pat_0123456789abcdefghij",
        "glpat-0123456789abcdefghij",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_looks_like_a_key_is_masked(form: str, secret: str) -> None:
    stream = io.StringIO()
    logs.configure("info", form, stream=stream)
    log.info("got %s", secret, extra={"fact": f"x={secret}", "list": [secret]})
    try:
        int(secret)
    except ValueError:
        log.exception("failed")
    assert secret not in stream.getvalue()
    assert MASK in stream.getvalue()


def test_credentials_in_headers_and_urls_are_masked() -> None:
    masker = Masker()
    assert masker.mask("Authorization: Bearer abc.def-123") == f"Authorization: Bearer {MASK}"
    assert masker.mask("https://me:pa55@host/x") == f"https://{MASK}@host/x"
    assert masker.mask("http://host:80/a@b") == "http://host:80/a@b"
    assert masker.mask('{"a":"http://a","b":"c:d@e"}') == '{"a":"http://a","b":"c:d@e"}'


def test_a_named_secret_is_masked_from_then_on() -> None:
    stream = io.StringIO()
    masker = logs.configure("info", "json", stream=stream)
    masker.add(Secret("correct horse battery"))
    log.info("it is correct horse battery, twice", extra={"fact": ["correct horse battery"]})
    line = as_json(stream)
    assert line["message"] == f"it is {MASK}, twice"
    assert line["fact"] == [MASK]


def test_nothing_is_shown_of_a_secret_that_begins_with_another() -> None:
    masker = Masker()
    for value in ("a-long-secret", "a-long-secret-and-more"):
        masker.add(Secret(value))
    assert masker.mask("x a-long-secret-and-more y") == f"x {MASK} y"


def test_a_short_secret_masks_no_plain_words() -> None:
    masker = Masker()
    masker.add(Secret("info"))
    assert masker.mask("info") == "info"


def test_the_masker_forgets_the_oldest_of_thousands() -> None:
    masker = Masker()
    for number in range(5000):
        masker.add(Secret(f"value-{number:05}"))
    assert masker.mask("value-00000 value-04999") == f"value-00000 {MASK}"


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", "text", stream=first)
    logs.configure("info", "text", stream=second)
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    log.info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err
    assert sys.stderr


def test_warnings_of_python_are_lines_too() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "old thing" in as_json(stream)["message"]


def test_what_is_repeated_is_counted_and_said_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: moment[0])
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    for number in range(1000):
        log.warning("write failed", extra={"reason": "disk full", "sandbox_id": f"s{number % 7}"})
        log.info("sandbox created", extra={"sandbox_id": f"s{number}"})
    log.warning("write failed", extra={"reason": "disk fails"})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sum(line["message"] == "sandbox created" for line in lines) == 1000
    failures = [line for line in lines if line["message"] == "write failed"]
    assert [line["reason"] for line in failures] == ["disk full"] * 5 + ["disk fails"]

    moment[0] += 61
    stream.truncate(0)
    stream.seek(0)
    log.info("what comes next")
    counted, following = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (counted["message"], counted["reason"]) == ("write failed", "disk full")
    assert counted["repeated"] == 995
    assert sorted(counted["sandbox_id"]) == [f"s{number}" for number in range(7)]
    assert following["message"] == "what comes next"


def test_a_record_costs_no_more_where_many_causes_are_known() -> None:
    logs.configure("info", "json", stream=io.StringIO())

    def write(number: int) -> None:
        log.info("egress denied", extra={"reason": f"add `host-{number}.example`"})

    write(0)
    once = steps_of(lambda: write(1))
    for number in range(2, 500):
        write(number)
    assert steps_of(lambda: write(500)) == once


def steps_of(act: Callable[[], None]) -> int:
    """Return how many lines of Python run."""
    steps = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("write", [str, dashed])
def test_reasons_that_differ_in_an_id_are_one_cause(write: Callable[[str], str]) -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    for _ in range(20):
        log.warning("refused", extra={"reason": f"GET /conversations/{write(new_id())}/events: no"})
    [handler] = logging.getLogger().handlers
    handler.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("repeated", 0) for line in lines] == [0, 0, 0, 0, 0, 15]


def test_what_was_only_counted_is_said_at_the_end() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream=stream)
    for _ in range(8):
        try:
            int("broken")
        except ValueError:
            log.exception("task failed", extra={"task": "sync"})
    [handler] = logging.getLogger().handlers
    handler.close()
    assert stream.getvalue().count("Traceback") == 5
    assert stream.getvalue().splitlines()[-1].endswith("task failed task=sync repeated=3")


@pytest.mark.parametrize("form", ["text", "json"])
async def test_lines_of_requests_share_a_write_and_stand_where_they_were_logged(form: str) -> None:
    class Counting(io.StringIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    stream = Counting()
    key = new_key("asvc_").reveal()
    logs.configure("info", form, stream=stream)
    CURRENT_REQUEST.set("r1")
    for path in ("/first", f"/{key}", "/\udce9"):
        logs.log_fast(log, logging.INFO, "request", {"path": path, "status": 200})
    logs.log_fast(log, logging.DEBUG, "request", {"path": "/unheard"})
    assert stream.flushes == 0
    await asyncio.sleep(0)
    assert stream.flushes == 1
    logs.log_fast(log, logging.INFO, "request", {"path": "/before"})
    log.info("record")
    first, second, third, before, record = stream.getvalue().splitlines()
    assert "/first" in first
    assert "r1" in first
    assert key not in second
    assert "udce9" in third
    assert "/before" in before
    assert "record" in record


async def test_a_log_that_cannot_be_written_fails_nobody() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream=stream)
    logs.log_fast(log, logging.INFO, "request", {"path": "/"})
    stream.close()
    await asyncio.sleep(0)


def test_a_fresh_id_is_a_uuid_of_version_4() -> None:
    made = [UUID(new_id()) for _ in range(100)]
    assert len(set(made)) == 100
    assert {(one.version, one.variant) for one in made} == {(4, RFC_4122)}


def test_a_line_is_written_where_no_file_can_be_opened() -> None:
    code = """
import logging, resource
from agentsvc.base import logs
logs.configure("info", "text")
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
logging.getLogger().error("too many\\nopen files")
# What measures coverage writes a file at the end.
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith(r"ERROR   too many\nopen files logger=root")
    assert len(done.stderr.splitlines()) == 1
