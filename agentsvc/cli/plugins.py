"""`agentsvc plugins`: shows what is loaded, checks a backend on this machine, begins a new one."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import click

from agentsvc import __version__
from agentsvc.backend import API_VERSION, Health
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import config_option, load_config
from agentsvc.cli.text import columns
from agentsvc.config import Config
from agentsvc.plugins import BUILT_IN, BackendRegistry, Plugin, PluginHost
from agentsvc.testing import KitOptions, Outcome, check_backend, skeleton
from agentsvc.values import new_id


@click.group("plugins")
def command() -> None:
    """Show what is loaded, check a backend on this machine, begin a new one."""


@command.command("list")
@config_option
def list_plugins(config_file: Path | None) -> None:
    """List the plugins, what they offer, and how the configured backends are."""
    config = load_config(config_file).config
    host = load_plugins(config)
    for line in columns(("PLUGIN", "VERSION", "ORIGIN", "HOOKS"), map(_plugin_row, host.plugins())):
        click.echo(line)
    click.echo()
    for line in columns(("BACKEND CLASS", "PLUGIN", "API VERSION"), _class_rows(host)):
        click.echo(line)
    click.echo()
    health = asyncio.run(_probe(host, config))
    for line in columns(("BACKEND", "HEALTH", "FACTS"), _health_rows(health)):
        click.echo(line)


@command.command()
@click.argument("backend", metavar="BACKEND")
@click.option("--image", metavar="IMAGE", help="Image with python3 in it, where one is needed.")
@config_option
def check(backend: str, image: str | None, config_file: Path | None) -> None:
    """Hold a configured backend to the contract, on this machine.

    Makes many small sandboxes and deletes them again; takes a minute or two. What servers made
    with this backend is left alone.
    """
    config = load_config(config_file).config
    counts = asyncio.run(_check(load_plugins(config), config, backend, _options(image)))
    click.echo(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome))
    if counts[Outcome.FAILED]:
        raise CommandFailed(f"the backend `{backend}` does not keep the contract")


@command.command("new")
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
    async with _opened(host, config) as registry:
        return await registry.probe()


async def _check(
    host: PluginHost, config: Config, name: str, options: KitOptions
) -> Counter[Outcome]:
    async with _opened(host, config) as registry:
        if name not in registry.names():
            raise CommandFailed(
                f"there is no backend `{name}`", f"choose one of: {', '.join(registry.names())}"
            )
        backend = registry.get(name)
    counts: Counter[Outcome] = Counter()
    async for result in check_backend(type(backend), backend.config, options):
        counts[result.outcome] += 1
        reason = f": {result.reason}" if result.reason else ""
        click.echo(f"{result.outcome:<8}{result.name.replace('_', ' ')}{reason}")
    return counts


def _options(image: str | None) -> KitOptions:
    if image is None:
        return KitOptions()
    # What has an image has a network of its own, too: its loopback is not this machine's.
    everywhere = {"KIT_HOST": "0.0.0.0"}  # noqa: S104  # inside of the sandbox
    return KitOptions(order_overrides={"image": image, "env": everywhere}, beacon_host="")


@asynccontextmanager
async def _opened(host: PluginHost, config: Config) -> AsyncIterator[BackendRegistry]:
    """Open the configured backends, without touching what a server has made with them."""
    with tempfile.TemporaryDirectory(prefix="agentsvc-plugins-") as directory:
        registry = BackendRegistry.build(
            host, config, instance_id=new_id(), state_dir=Path(directory)
        )
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
