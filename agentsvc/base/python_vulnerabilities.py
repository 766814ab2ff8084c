"""Known vulnerabilities of Python versions that affect this server or its plugins.

Vulnerabilities in modules that the server does not use are omitted: it has its own tar reader
(`storage.tar_reader`) and its own classification of addresses (`plugin.egress.addresses`).
"""

import sys
from collections.abc import Mapping

from msgspec import Struct

type Version = tuple[int, int, int]


class Vulnerability(Struct, frozen=True, kw_only=True):
    """A vulnerability, the first fixed version of each series, and its effect here."""

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
    """Return the vulnerabilities of a version of Python, by default of the running one."""
    at: Version = version or sys.version_info[:3]
    return [one for one in VULNERABILITIES if at < one.fixed.get(at[:2], at)]
