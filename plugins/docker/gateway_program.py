"""Program of a sandbox's gateway container: relays ports and runs the egress proxy.

Standard library only. Its one argument is JSON: `relays` are pairs of addresses, connections to
the first of which are carried to the second; `proxy` is the address at which `agentsvc.egress`
listens, with its policy in the file named by `policy`. It ends when a part of it does.
"""

import asyncio
import contextlib
import json
import signal
import sys

_CHUNK = 65536


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def _relay(
    near_reader: asyncio.StreamReader,
    near_writer: asyncio.StreamWriter,
    target: tuple[str, int],
) -> None:
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError:
        # Nobody is there: whoever asks sees an end at once, not silence.
        near_writer.transport.abort()
        return
    try:
        await asyncio.gather(_carry(near_reader, far_writer), _carry(far_reader, near_writer))
    finally:
        far_writer.transport.abort()
        near_writer.transport.abort()


async def _listen(near: tuple[str, int], target: tuple[str, int]) -> None:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await _relay(reader, writer, target)

    server = await asyncio.start_server(on_connection, *near)
    await server.serve_forever()


async def _proxy(host: str, port: int, policy: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentsvc.egress", "--policy", policy),
        *("--host", host, "--port", str(port)),
    )
    await process.wait()


async def _run(arguments: str) -> None:
    given = json.loads(arguments)
    parts = [_listen(tuple(near), tuple(far)) for near, far in given["relays"]]
    host, port = given["proxy"]
    parts.append(_proxy(host, port, given["policy"]))
    loop = asyncio.get_running_loop()
    await asyncio.wait(
        [loop.create_task(part) for part in parts], return_when=asyncio.FIRST_COMPLETED
    )


def main() -> None:
    """Serve until told to end."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    asyncio.run(_run(sys.argv[1]))


if __name__ == "__main__":
    main()
