"""Known vulnerabilities of the Python that runs this server, where they matter to what it does.

What the server no longer uses is not here: it reads tar files by itself (`storage.tar_reader`), and knows
public addresses by itself (`plugin.egress.addresses`).
"""

import sys
from collections.abc import Mapping

from msgspec import Struct

type Version = tuple[int, int, int]


class Vulnerability(Struct, frozen=True, kw_only=True):
    """A vulnerability, the first version of each series without it, and why it matters here."""

    cve: str
    fixed: Mapping[tuple[int, int], Version]
    matters: str


VULNERABILITIES = (
    Vulnerability(
        cve="CVE-2025-4517",
        fixed={(3, 12): (3, 12, 11), (3, 13): (3, 13, 4)},
        matters="what unpacks tar files with `tarfile` may write outside of where it should, as a"
        " plugin may do; the server itself reads them otherwise",
    ),
)


def known_vulnerabilities(version: Version | None = None) -> list[Vulnerability]:
    """Return the vulnerabilities of a version of Python, by default of the one that runs this."""
    at: Version = version or sys.version_info[:3]
    return [one for one in VULNERABILITIES if at < one.fixed.get(at[:2], at)]
