"""`agentsvc serve`: runs the server until it is told to stop."""

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from aiohttp import web

from agentsvc import __version__
from agentsvc.accounts import KEY_PREFIX, LINK_LIFETIME, SHORTEST_KEY, KeyRing, Role
from agentsvc.app import build_app
from agentsvc.base import (
    Masker,
    NotAuthenticated,
    Secret,
    StartFailed,
    hint_against,
    known_vulnerabilities,
    logs,
    new_key,
    raise_open_files,
    replace_private,
)
from agentsvc.cli import callbacks
from agentsvc.cli.listener import bind, cannot_listen, url_of
from agentsvc.cli.manager import Manager, Reload
from agentsvc.cli.options import config_option, data_dir_of, data_dir_option, example, load_config
from agentsvc.cli.secretoutput import is_terminal
from agentsvc.config import (
    BOOTSTRAP_KEY_FILE_VARIABLE,
    BOOTSTRAP_KEY_VARIABLE,
    Config,
    DataDirectory,
    Loaded,
)
from agentsvc.http import (
    BACKENDS,
    CONFIG,
    DATABASE,
    KEYRING,
    LOGIN_PATH,
    LOGINS,
    SANDBOXES,
    SUPERVISOR,
    Runner,
    prefix_of,
)
from agentsvc.sandboxes import find_protections
from agentsvc.storage import lock_data_dir

log = logging.getLogger(__name__)

FIRST_USER: Final = "admin"
LINK_MINUTES: Final = round(LINK_LIFETIME.total_seconds() / 60)
_LONGEST_FILE: Final = 10_000


@click.command(
    "serve", epilog=example("agentsvc serve --host 0.0.0.0 --port 8080 --data-dir /srv/agents")
)
@click.option("--host", metavar="H", help="Address to listen on; default: 127.0.0.1.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port to listen on; default: 3000. 0 selects any free port.",
)
@data_dir_option
@config_option
@click.pass_obj
def command(
    secrets: Mapping[str, str] | None,
    host: str | None,
    port: int | None,
    data_dir: str | None,
    config_file: Path | None,
) -> None:
    """Run the server until it is told to stop.

    On SIGTERM or Ctrl-C it completes requests and leaves sandboxes running; a second signal ends the
    process at once. The first start creates the data directory and an admin API key, which is printed
    to a terminal, or otherwise stored in a file in that directory. For automation, set that key by
    AGENTSVC_BOOTSTRAP_KEY_FILE, the name of a file, or by AGENTSVC_BOOTSTRAP_KEY, the key itself.
    SIGHUP reloads the configuration: `log.level` applies at once, and the log names the settings that
    need a restart.
    """
    environ = {**os.environ, **(secrets or {})}

    def read() -> Loaded:
        return load_config(
            config_file, environ, server__host=host, server__port=port, server__data_dir=data_dir
        )

    loaded = read()
    manager = Manager(os.environ)
    bootstrap_key = read_bootstrap_key(environ)
    masker = logs.configure(loaded.config.log.level, loaded.config.log.format)
    if bootstrap_key is not None:
        masker.add(bootstrap_key)
    _warn_of_vulnerabilities()
    data_directory = data_dir_of(loaded)
    open_files = raise_open_files()
    with bind(loaded.config.server.host, loaded.config.server.port) as listener:
        data_directory.prepare()
        with lock_data_dir(data_directory.path):
            config = limit_connections(with_addresses(loaded.config, listener), open_files)
            greet = partial(_greet, loaded, listener, bootstrap_key, masker)
            reload = Reload(manager, loaded, read)
            _run(_serve(config, data_directory, listener, manager, reload=reload, greet=greet))


def _warn_of_vulnerabilities() -> None:
    """Log the known vulnerabilities of this Python; `agentsvc doctor` tells how to fix them."""
    if found := known_vulnerabilities():
        log.warning(
            "Python has known vulnerabilities, unless its distributor has patched them",
            extra={
                "version": ".".join(map(str, sys.version_info[:3])),
                "vulnerabilities": "; ".join(f"{one.cve}: {one.matters}" for one in found),
            },
        )


def read_bootstrap_key(environ: Mapping[str, str]) -> Secret | None:
    """Return the bootstrap key of the environment, or None; raises StartFailed if it is weak.

    An empty variable counts as unset.
    """
    source, text = BOOTSTRAP_KEY_VARIABLE, environ.get(BOOTSTRAP_KEY_VARIABLE, "")
    if file := environ.get(BOOTSTRAP_KEY_FILE_VARIABLE):
        if text:
            raise StartFailed(
                f"{BOOTSTRAP_KEY_VARIABLE} and {BOOTSTRAP_KEY_FILE_VARIABLE} are both set",
                hint="keep the file",
            )
        source, text = BOOTSTRAP_KEY_FILE_VARIABLE, _read_key_file(Path(file))
    if not text and not file:
        return None
    if len(text) < SHORTEST_KEY or not all("!" <= char <= "~" for char in text):
        raise StartFailed(
            f"{source} must have at least {SHORTEST_KEY} characters,"
            " all of them ASCII letters, digits or signs",
            hint="create one with: openssl rand -hex 32",
        )
    return Secret(text)


def _read_key_file(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_LONGEST_FILE).strip()
    except OSError as exc:
        raise StartFailed(
            f"the file of {BOOTSTRAP_KEY_FILE_VARIABLE} cannot be read ({exc.strerror}): {file}",
            hint=hint_against(exc),
        ) from exc


def with_addresses(config: Config, listener: socket.socket) -> Config:
    """Return the configuration with the actual port, and with the internal URL for callbacks.

    The public URL is not changed: without one, it is derived from each client's request.
    """
    url = config.server.internal_url or url_of(listener)
    server = msgspec.structs.replace(
        config.server, port=listener.getsockname()[1], internal_url=url
    )
    return msgspec.structs.replace(config, server=server)


def limit_connections(config: Config, open_files: int) -> Config:
    """Return the configuration with max_connections limited to a quarter of the open file limit.

    Each connection may need another one to a sandbox, and as many may be open while they are rejected.
    """
    most = open_files // 4
    if config.server.max_connections <= most:
        return config
    log.warning(
        "server.max_connections reduced, because the limit of open files is low",
        extra={"connections": most, "open_files": open_files},
    )
    server = msgspec.structs.replace(config.server, max_connections=most)
    return msgspec.structs.replace(config, server=server)


async def ensure_first_key(
    keys: KeyRing, bootstrap_key: Secret | None, keep: Callable[[Secret], None] = lambda _key: None
) -> Secret | None:
    """Create the first admin and key; return the key, or None if there are keys already.

    A generated key is passed to `keep` before it is created, so that a crash in between loses none.
    """
    if not await keys.has_keys():
        user_id = await keys.find_user(FIRST_USER)
        user_id = user_id or await keys.create_user(FIRST_USER, Role.ADMIN)
        key = bootstrap_key or new_key(KEY_PREFIX)
        if bootstrap_key is None:
            keep(key)
        return (await keys.create_key(user_id, "first key", key=key))[1]
    if bootstrap_key is not None:
        await _warn_if_unused(keys, bootstrap_key)
    return None


async def _greet(
    loaded: Loaded,
    listener: socket.socket,
    bootstrap_key: Secret | None,
    masker: Masker,
    app: web.Application,
) -> None:
    """Print where files are, and at the first start the API key and a login link."""
    data_directory = data_dir_of(loaded)
    keep = partial(_show_first_key, data_directory)
    first_key = await ensure_first_key(app[KEYRING], bootstrap_key, keep)
    if first_key is not None:
        masker.add(first_key)
    if first_key is not None and bootstrap_key is None:
        link = await _make_login_link(app, listener, first_key)
        masker.add(Secret(link.rpartition("=")[2]))
        _show_first_key(data_directory, first_key, link)
    elif data_directory.first_key.exists():
        click.echo(
            f"note: the first key is still in {data_directory.first_key}; delete it", err=True
        )
    click.echo(f"  database    {data_directory.database}")
    click.echo(
        f"  master key  {data_directory.master_key} (keep a copy: it decrypts the stored secrets)"
    )
    click.echo("  logs        standard error")
    click.echo(f"  config      {loaded.path or 'defaults, no file was read'}\n")


def _show_first_key(data_directory: DataDirectory, key: Secret, link: str = "") -> None:
    """Print the first key, then a login link; without a terminal, store them in a file."""
    shown = f"Its admin API key, shown only this once:\n\n    {key.reveal()}\n"
    more = (
        f"Or log a browser in with this link, once, within {LINK_MINUTES} minutes:\n\n    {link}\n"
    )
    if is_terminal():
        click.echo(more if link else f"This is a new installation. {shown}")
        return
    try:
        replace_private(data_directory.first_key, f"{shown}\n{more}" if link else shown)
    except OSError as exc:
        raise StartFailed(
            f"the first key cannot be stored ({exc.strerror}): {data_directory.first_key}",
            hint=hint_against(exc),
        ) from exc
    if link:
        click.echo("This is a new installation. Its admin API key and a login link are in")
        click.echo(f"\n    {data_directory.first_key}\n")
        click.echo("which only this user can read; delete it after you have copied them.\n")


async def _make_login_link(app: web.Application, listener: socket.socket, key: Secret) -> str:
    """Return a URL that logs a browser in with a key, once."""
    token = await app[LOGINS].make_link((await app[KEYRING].identify(key.reveal())).key_id)
    base = app[CONFIG].server.public_url.rstrip("/") or url_of(listener)
    return f"{base}{LOGIN_PATH}?token={token.reveal()}"


async def _warn_if_unused(keys: KeyRing, bootstrap_key: Secret) -> None:
    try:
        await keys.identify(bootstrap_key.reveal())
    except NotAuthenticated:
        note = "note: the bootstrap key is ignored, this installation has other keys already"
        click.echo(note, err=True)


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(serving, loop_factory=_loop_factory())
    except asyncio.CancelledError:
        click.echo("agentsvc has stopped", err=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop factory: uvloop's if installed, otherwise None for asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop]
    factory = importlib.import_module("uvloop").new_event_loop
    return factory


async def _serve(
    config: Config,
    data_directory: DataDirectory,
    listener: socket.socket,
    manager: Manager,
    *,
    reload: Callable[[], None],
    greet: Callable[[web.Application], Awaitable[None]],
) -> None:
    """Serve until a signal cancels this task, then shut down."""
    _cancel_on_signal()
    # Objects created during startup are not garbage.
    gc.disable()
    app = await build_app(config, data_dir=data_directory.path)
    grace = config.server.shutdown_grace_seconds
    prefix = prefix_of(config.server.public_url)
    per_sandbox = config.limits.connections_per_sandbox
    runner = Runner(
        app, grace_seconds=grace, prefix=prefix, limits=config.server, max_of_sandbox=per_sandbox
    )
    # The runner closes the listening sockets, before the stack does.
    with contextlib.ExitStack() as sockets:
        try:
            await runner.setup()
            await greet(app)
            here = url_of(listener)
            await _listen(runner, listener, config)
            former = await _former_addresses(config, data_directory, app)
            for one in sockets.enter_context(callbacks.bound(former)):
                await runner.listen(one)
            write_url(data_directory, here)
            url = config.server.public_url or here
            click.echo(f"agentsvc {__version__} is ready: {url} ({_isolation(app, config)})")
            _start_watching(app, manager, reload)
            manager.notify("READY=1", f"STATUS=listening at {url}")
            # Objects of the startup stay, so no collection needs to scan them again.
            gc.freeze()
            gc.enable()
            await asyncio.Event().wait()
        finally:
            manager.notify("STOPPING=1")
            with contextlib.suppress(OSError):
                # While requests are completed, another process may already use the address.
                data_directory.url.unlink()
            await runner.cleanup()


def _isolation(app: web.Application, config: Config) -> str:
    """Describe the isolation of the default backend, and of others that are below their default."""
    found = find_protections(app[BACKENDS], config.sandboxes)
    texts = [
        one.describe() if number == 0 else f"backend `{one.backend}`: {one.describe()}"
        for number, one in enumerate(found)
        if number == 0 or one.is_below_default
    ]
    return "; ".join(texts) or "no backend can be reached"


def _start_watching(app: web.Application, manager: Manager, reload: Callable[[], None]) -> None:
    """Reload on SIGHUP, and notify the watchdog as long as event loop and database respond."""
    # In a terminal SIGHUP means that the terminal was closed, and ends the server as usual.
    if not os.isatty(0):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)

    async def beat() -> None:
        await app[DATABASE].one("SELECT 1")
        manager.notify("WATCHDOG=1")

    if manager.watchdog_seconds:
        app[SUPERVISOR].loop("watchdog", beat, every_seconds=manager.watchdog_seconds)


def write_url(data_directory: DataDirectory, url: str) -> None:
    """Store the URL for commands on this machine; a write error is logged, and they need --url."""
    try:
        data_directory.url.write_text(f"{url}\n")
    except OSError as exc:
        log.warning("server URL not written to the data directory", extra={"reason": str(exc)})


async def _former_addresses(
    config: Config, data_directory: DataDirectory, app: web.Application
) -> list[callbacks.Address]:
    current = callbacks.address_of(config.server.internal_url)
    if current[1] != config.server.port:
        # Sandboxes call another address, such as a proxy, which has not moved.
        return []
    has_sandboxes = await app[SANDBOXES].any_exist()
    file = data_directory.callback_addresses
    return await asyncio.to_thread(callbacks.remember, file, current, has_sandboxes=has_sandboxes)


async def _listen(runner: Runner, listener: socket.socket, config: Config) -> None:
    try:
        await runner.listen(listener)
    except OSError as exc:
        raise cannot_listen(exc, config.server.host, config.server.port) from exc


def _cancel_on_signal() -> None:
    """Cancel the current task on the first signal, and exit the process on the second."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        if len(signals) > 1 or task is None:
            os._exit(128 + number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
