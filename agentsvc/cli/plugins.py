"""`agentsvc plugins`: shows what is loaded, checks a backend on this machine, begins a new one."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click

from agentsvc import __version__
from agentsvc.base import OrderRejected, new_id
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import config_option, example, json_option, load_config
from agentsvc.cli.text import json_text, print_table, to_records
from agentsvc.config import Config, to_toml
from agentsvc.plugin import API_VERSION, Health, Port, Spec
from agentsvc.sandboxes import BUILT_IN, Backend, BackendRegistry, Plugin, PluginHost
from agentsvc.testing import CHECKS, WORKLOAD, CheckStatus, KitOptions, check_backend, skeleton

_KIT_SPEC: Final = "kit"
_WEB: Final = Port(name="web")
_EVERYWHERE: Final = {"KIT_HOST": "0.0.0.0"}  # noqa: S104  # inside of the sandbox


@click.group("plugins", epilog=example("agentsvc plugins list"))
def command() -> None:
    """Show what is loaded, check a backend on this machine, begin a new one."""


@command.command("list", epilog=example("agentsvc plugins list", "agentsvc plugins list --json"))
@json_option
@config_option
def list_plugins(*, as_json: bool, config_file: Path | None) -> None:
    """List the plugins, what they offer, and how the configured backends are."""
    config = load_config(config_file).config
    host = load_plugins(config)
    health = asyncio.run(_probe(host, config))
    tables = {
        "plugins": (("PLUGIN", "VERSION", "ORIGIN", "HOOKS"), map(_plugin_row, host.plugins())),
        "backend_classes": (("BACKEND CLASS", "PLUGIN", "API VERSION"), _class_rows(host)),
        "backends": (("BACKEND", "HEALTH", "FACTS"), _health_rows(health)),
    }
    if as_json:
        click.echo(json_text({name: to_records(*table) for name, table in tables.items()}))
        return
    for number, table in enumerate(tables.values()):
        if number:
            click.echo()
        print_table(*table, as_json=False)


@command.command(epilog=example("agentsvc plugins check process"))
@click.argument("backend", metavar="BACKEND")
@click.option("--image", metavar="IMAGE", help="Image with python3 in it, where one is needed.")
@click.option(
    "--spec",
    metavar="SPEC",
    help="Spec of another agentsvc, made by `plugins workload`, where its sandboxes are checked.",
)
@click.option("--only", metavar="CHECK", multiple=True, help="Run this check, by its words.")
@config_option
def check(
    backend: str,
    image: str | None,
    spec: str | None,
    only: tuple[str, ...],
    config_file: Path | None,
) -> None:
    """Hold a configured backend to the contract, on this machine.

    Makes many small sandboxes and deletes them again; takes a minute or two. What servers made
    with this backend is left alone.
    """
    config = load_config(config_file).config
    options = _options(image, spec)
    counts = asyncio.run(_check(load_plugins(config), config, backend, options, _names(only)))
    click.echo(", ".join(f"{counts[outcome]} {outcome}" for outcome in CheckStatus))
    if counts[CheckStatus.FAILED]:
        raise CommandFailed(f"the backend `{backend}` does not keep the contract")


@command.command(epilog=example("agentsvc plugins workload"))
@click.option("--image", metavar="IMAGE", help="Image with python3 in it, where one is needed.")
def workload(image: str | None) -> None:
    """Print a spec that runs what the checks look at, for the config of another agentsvc.

    Its backend there is the default one. `plugins check NAME --spec kit` then checks the backend
    here whose sandboxes are at that server.
    """
    python = "python3" if image else "{python}"
    env = {"KIT_PORT": "{port.web}", **(_EVERYWHERE if image else {})}
    named = {"image": image} if image else {}
    command = [python, "-I", "-c", WORKLOAD]
    click.echo(f"[specs.{_KIT_SPEC}]")
    spec = {**named, "command": command, "env": env, "ports": [{"name": _WEB.name}]}
    for name, value in spec.items():
        click.echo(f"{name} = {to_toml(value)}")


@command.command("new", epilog=example("agentsvc plugins new mine --directory agentsvc-mine"))
@click.argument("name", metavar="NAME")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to make; otherwise agentsvc-NAME here.",
)
def make_new(name: str, directory: Path | None) -> None:
    """Make a package with a backend that works, to begin with.

    It has a backend, its configuration, its entry point and the conformance kit as its test.
    """
    target = directory or Path(f"agentsvc-{name.replace('_', '-')}")
    try:
        files = skeleton.files(name)
        target.mkdir(parents=True)
        for path, text in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except ValueError as exc:
        raise CommandFailed(str(exc), "choose lower-case letters, digits and _") from exc
    except FileExistsError as exc:
        raise CommandFailed(f"{target} exists already", "name another with --directory") from exc
    except OSError as exc:
        raise CommandFailed(f"{target} cannot be made: {exc.strerror}") from exc
    click.echo(target)
    click.echo(f"hint: cd {target} && pip install -e '.[dev]' && pytest", err=True)


def load_plugins(config: Config) -> PluginHost:
    """Load every plugin the configuration names."""
    dirs = [Path(directory) for directory in config.plugins.dirs]
    return PluginHost.load(dirs=dirs, disable=config.plugins.disable)


async def _probe(host: PluginHost, config: Config) -> dict[str, Health]:
    async with opened(host, config) as registry:
        return await registry.probe()


async def _check(
    host: PluginHost, config: Config, name: str, options: KitOptions, only: frozenset[str]
) -> Counter[CheckStatus]:
    async with opened(host, config) as registry:
        if name not in registry.names():
            raise CommandFailed(
                f"there is no backend `{name}`", f"choose one of: {', '.join(registry.names())}"
            )
        backend = registry.get(name)
        _check_orders(backend, options)
    counts: Counter[CheckStatus] = Counter()
    async for result in check_backend(type(backend), backend.config, options, only=only):
        counts[result.outcome] += 1
        reason = f": {result.reason}" if result.reason else ""
        click.echo(f"{result.outcome:<8}{result.name.replace('_', ' ')}{reason}")
    return counts


def _options(image: str | None, spec: str | None) -> KitOptions:
    if spec is not None:
        fields = {"image": spec, "command": None, "ports": (_WEB,), "env": {"KIT_PORT": "its own"}}
        return KitOptions(order_overrides=fields, beacon_host="")
    if image is None:
        return KitOptions()
    # What has an image has a network of its own, too: its loopback is not this machine's.
    return KitOptions(order_overrides={"image": image, "env": _EVERYWHERE}, beacon_host="")


def _names(words: Iterable[str]) -> frozenset[str]:
    """Return the checks that are meant; raises CommandFailed for one that does not exist."""
    names = frozenset(text.strip().replace(" ", "_") for text in words)
    if wrong := names - {check.name for check in CHECKS}:
        raise CommandFailed(f"there is no check `{min(wrong)}`", "see what `plugins check` prints")
    return names


def _check_orders(backend: Backend, options: KitOptions) -> None:
    """Raise CommandFailed where the backend would refuse every order of the kit."""
    asked: dict[str, Any] = {"command": ("python3", "-c", WORKLOAD), "ports": (_WEB,)}
    asked |= {name: value for name, value in options.order_overrides.items() if name != "env"}
    try:
        backend.check_spec(Spec(id="kit", backend=backend.name, **asked))
    except OrderRejected as exc:
        raise CommandFailed(
            f"the backend does not run what it is checked with: {exc.message}",
            "name an image with --image, or of another agentsvc the spec that"
            " `agentsvc plugins workload` prints, with --spec",
        ) from exc


@asynccontextmanager
async def opened(
    host: PluginHost, config: Config, *, within: Path | None = None
) -> AsyncIterator[BackendRegistry]:
    """Open the configured backends, without touching what a server has made with them.

    What they need a directory for is in one of its own, `within` another if that is given.
    """
    with tempfile.TemporaryDirectory(prefix="agentsvc-plugins-", dir=within) as folder:
        registry = BackendRegistry.build(host, config, instance_id=new_id(), state_dir=Path(folder))
        try:
            await registry.open()
            yield registry
        finally:
            await registry.close()


def _plugin_row(plugin: Plugin) -> tuple[str, ...]:
    hooks = ", ".join(hook.removeprefix("agentsvc_") for hook in plugin.hooks)
    version = __version__ if plugin.origin == BUILT_IN else plugin.version
    return (plugin.name, version or "-", plugin.origin, hooks or "-")


def _class_rows(host: PluginHost) -> Iterator[tuple[str, ...]]:
    for plugin in host.plugins():
        for kind in plugin.backends:
            fits = kind.api_version == API_VERSION
            note = "" if fits else f" (incompatible, this server has {API_VERSION})"
            yield (kind.name, plugin.name, f"{kind.api_version}{note}")


def _health_rows(found: Mapping[str, Health]) -> Iterator[tuple[str, ...]]:
    for name, health in found.items():
        facts = ", ".join(f"{key}={value}" for key, value in health.facts.items())
        yield (name, "ok" if health.ok else f"not usable: {health.reason}", facts or "-")
