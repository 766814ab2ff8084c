"""The egress proxy and port relays as a program in a gateway container: `python -m agentsvc.egress`."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from .policy import from_json
from .proxy import Proxy
from .resolver import Resolver


def main() -> None:
    """Parse the arguments and serve until SIGTERM; exit with 2 if they are invalid."""
    parser = argparse.ArgumentParser(prog="agentsvc.egress", description=__doc__)
    parser.add_argument("--policy", type=Path, required=True, help="a JSON file; see from_json")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104  # a container's
    parser.add_argument("--port", type=int, default=3128, help="port to listen on")
    parser.add_argument(
        "--relay",
        nargs=4,
        action="append",
        default=[],
        metavar=("HOST", "PORT", "TO_HOST", "TO_PORT"),
        help="address to listen on, and the address to forward its connections to",
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_FORMAT)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Facts())
    asyncio.run(_run(arguments))


_CHUNK = 65536
_FORMAT = "%(asctime)s %(levelname)s %(message)s%(facts)s"


class _Facts(logging.Filter):
    """Appends the `extra` fields of a log record to its text."""

    def filter(self, record: logging.LogRecord) -> bool:
        names = ("sandbox_id", "method", "host", "port", "reason")
        values = {name: getattr(record, name, "") for name in names}
        record.facts = "".join(f" {name}={value}" for name, value in values.items() if value)
        return True


async def _run(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    resolver = Resolver()
    proxy = Proxy(from_json(arguments.policy.read_bytes()), name="", resolver=resolver)

    def reread() -> None:
        try:
            proxy.policy = from_json(arguments.policy.read_bytes())
        except (OSError, ValueError) as exc:
            logging.getLogger(__name__).warning(
                "egress policy not changed", extra={"reason": str(exc)}
            )

    loop.add_signal_handler(signal.SIGHUP, reread)
    await proxy.listen_tcp(arguments.host, arguments.port)
    for host, port, to_host, to_port in arguments.relay:
        await _relay(host, int(port), to_host, int(to_port))
    await ended.wait()
    await proxy.close()
    resolver.close()


async def _relay(host: str, port: int, to_host: str, to_port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(to_host, to_port)
        except OSError:
            # Nothing listens there: abort at once, so that the client need not time out.
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            far_writer.transport.abort()
            writer.transport.abort()

    await asyncio.start_server(serve, host, port)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


if __name__ == "__main__":
    main()
