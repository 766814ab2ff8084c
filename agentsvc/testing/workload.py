"""The workload of the conformance kit: a small HTTP server controlled by its requests.

Standard library only, so that any Python can run it: `python -c SOURCE`. Its environment variables
are: KIT_PORT (the port to serve), KIT_NAME (its name), KIT_LINES (number of lines to print first),
KIT_EXIT (exit at once with this code) and KIT_BEACON (`HOST:PORT` to which it sends its name by
UDP while it runs).

    GET /name          its name
    GET /run           a random id of this run
    GET /work          use CPU for a moment
    GET /env/NAME      an environment variable
    PUT /files/NAME    store the body in a file of its working directory; GET reads it
    POST /exit/CODE    exit with this code
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BEACON_SECONDS = 0.05
WORK_SECONDS = 0.2


class Workload:
    """The server; the kit runs it as a process, the fake backend as a thread."""

    def __init__(
        self, env: Mapping[str, str], directory: Path, write: Callable[[str], object]
    ) -> None:
        self.env = env
        self.directory = directory
        self.write = write
        self.exit_code = 0
        self.run_id = os.urandom(8).hex()
        self.ended = threading.Event()
        self.server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        """Listen, unless KIT_EXIT is set."""
        if "KIT_EXIT" not in self.env:
            address = (self.env.get("KIT_HOST", "127.0.0.1"), int(self.env["KIT_PORT"]))
            self.server = ThreadingHTTPServer(address, self._handler())

    def run(self) -> int:
        """Print lines, serve until stopped, and return the exit code."""
        for number in range(int(self.env.get("KIT_LINES", "0"))):
            self.write(f"line {number}")
        if self.server is None:
            self.write("ending at once")
            self.exit_code = int(self.env["KIT_EXIT"])
        else:
            threading.Thread(target=self._beacon, daemon=True).start()
            with self.server:
                self.server.serve_forever(poll_interval=0.02)
        self.ended.set()
        return self.exit_code

    def stop(self) -> None:
        """Stop serving, and wait until it has stopped."""
        if self.server is not None and not self.ended.is_set():
            self.server.shutdown()
            self.ended.wait()

    def answer(self, path: str) -> bytes | None:
        """Return the response body of a GET, or None for a 404."""
        kind, _, name = path.strip("/").partition("/")
        file = self.directory / Path(name).name
        if kind == "work":
            end = time.process_time() + WORK_SECONDS
            while time.process_time() < end:
                pass
        if kind == "files":
            return file.read_bytes() if file.is_file() else None
        known = {"name": self.env.get("KIT_NAME", ""), "run": self.run_id, "work": ""}
        text = self.env.get(name) if kind == "env" else known.get(kind)
        return None if text is None else text.encode()

    def _beacon(self) -> None:
        host, _, port = self.env.get("KIT_BEACON", "").rpartition(":")
        if not host:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while not self.ended.wait(BEACON_SECONDS):
                with contextlib.suppress(OSError):
                    sender.sendto(self.env["KIT_NAME"].encode(), (host, int(port)))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        workload = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = workload.answer(self.path)
                if answer is None:
                    self.send_error(404)
                else:
                    self._answer(answer)

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                (workload.directory / Path(self.path).name).write_bytes(body)
                self._answer(b"")

            def do_POST(self) -> None:
                workload.exit_code = int(Path(self.path).name)
                self._answer(b"")
                assert workload.server is not None  # noqa: S101  # it is what called us
                threading.Thread(target=workload.server.shutdown).start()

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its base's name
                """Log nothing, because the output is under test."""

        return Handler


def main() -> None:
    """Run the workload as a process."""
    workload = Workload(os.environ, Path.cwd(), lambda text: print(text, flush=True))  # noqa: T201  # its output is what it is for
    workload.open()
    sys.exit(workload.run())


if __name__ == "__main__":
    main()
