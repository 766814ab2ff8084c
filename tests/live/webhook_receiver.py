"""A receiver of webhooks as a process of its own: writes each request it takes to a file.

It knows nothing of the server. Arguments: an open socket that is bound, and the file.
"""

import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock


class Handler(BaseHTTPRequestHandler):
    """Takes every POST."""

    taken: Path
    lock = Lock()

    def do_POST(self) -> None:  # the name that http.server calls
        body = self.rfile.read(int(self.headers["Content-Length"]))
        line = json.dumps({"headers": dict(self.headers), "body": body.decode()})
        with self.lock, self.taken.open("a") as file:
            file.write(line + "\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until the process is ended."""
    Handler.taken = Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(sys.argv[1]))
    server.server_activate()
    server.serve_forever()


if __name__ == "__main__":
    main()
