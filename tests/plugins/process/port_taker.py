"""Run in a sandbox: finds the ports of others and listens at them first, as far as it can.

Arguments: its own port, the file for all that it is sent, and the ports that it is to take, so that
nobody else on the machine is disturbed. It asks the kernel which of them are bound, and tries to
listen at those in every way in which a port can be shared.
"""

import contextlib
import http.server
import select
import socket
import struct
import sys
import threading

SOCK_DIAG = 4
BY_FAMILY = 20
REQUEST_DUMP = 0x301
DONE = 3
STATES = 1 << 10 | 1 << 13 | 1 << 7  # listening, bound, closed


def ports() -> set[int]:
    found = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, 3, SOCK_DIAG) as link:
            link.settimeout(1)
            body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, STATES)
            link.send(struct.pack("=IHHII", 16 + len(body), BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
            more = True
            while more:
                data = link.recv(1 << 20)
                while data:
                    size, kind, *_ = struct.unpack_from("=IHHII", data)
                    more = kind == BY_FAMILY
                    if not more:
                        break
                    found.add(struct.unpack_from(">H", data, 20)[0])
                    data = data[(size + 3) & ~3 :]
    return found


def listen(address: str, port: int, options: tuple[int, ...]) -> socket.socket | int:
    taken = socket.socket()
    try:
        for option in options:
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
        taken.bind((address, port))
        taken.listen()
    except OSError as exc:
        taken.close()
        return exc.errno or 0
    return taken


def take_all(told: str, wanted: set[int]) -> None:
    held: dict[socket.socket, int] = {}
    links: list[socket.socket] = []
    with open(told, "ab", buffering=0) as file:  # noqa: PTH123
        while True:
            for port in ports() & wanted - {*held.values()}:
                for address in ("127.0.0.1", ""):
                    for options in ((socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,)):
                        taken = listen(address, port, options)
                        if isinstance(taken, int):
                            file.write(b"REFUSED %d %d\n" % (port, taken))
                        else:
                            held[taken] = port
                            file.write(b"TOOK %d\n" % port)
            for one in select.select([*held, *links], [], [], 0.01)[0]:
                if one in held:
                    links.append(one.accept()[0])
                    continue
                with contextlib.suppress(OSError):
                    if data := one.recv(65536):
                        file.write(data)
                        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
                        continue
                links.remove(one)
                one.close()


def main() -> None:
    own, told, *wanted = sys.argv[1:]
    threading.Thread(target=take_all, args=(told, {*map(int, wanted)}), daemon=True).start()
    handler = http.server.SimpleHTTPRequestHandler
    http.server.HTTPServer(("127.0.0.1", int(own)), handler).serve_forever()


main()
