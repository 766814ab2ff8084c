"""Ways to write a host that no sandbox may reach; PORT stands for one where something listens."""

from typing import Final

LOOPBACK: Final = [
    "127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "2130706433", "0x7f000001",
    "0x7F.1", "0x7f.0.0.1", "0x7f.0x0.0x0.0x1", "017700000001", "0177.0.0.1", "0177.0.0.01",
    "0177.1", "127.0.0.1.", "127.000.000.001", "127.0.0.0x1", "0X7F000001", "00000177.0.0.1",
    "\uff10x7f.1", "\uff11\uff12\uff17.0.0.1", "\uff11\uff12\uff17\u3002\uff10\u3002\uff10\u3002\uff11", "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1", "127\uff610\uff610\uff611",
    "\u2460\u2461\u2466.0.0.1", "\u00b9\u00b2\u2077.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]", "[::0001]",
    "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::FFFF:127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]", "[::7f00:1]",
    "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]",
    "0", "0.0.0.0", "00.0.0.0", "0x0", "0.0", "0.0.0.0.", "[::]", "[0:0:0:0:0:0:0:0]",  # noqa: S104  # nothing is bound
    "[::ffff:0.0.0.0]", "[::ffff:0:0]",
]  # fmt: skip

PRIVATE: Final = [
    "10.0.0.1", "10.1", "10.255.255.255", "0x0a000001", "167772161", "012.0.0.1", "0xa.1",
    "172.16.0.1", "172.31.255.254", "0xac100001", "2886729729", "0254.020.0.1", "192.168.0.1",
    "192.168.1", "192.168.255.255", "0xc0a80001", "3232235521", "0300.0250.0.1", "169.254.169.254",
    "169.254.0.1", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "169.254.43518",
    "169.16689662", "0xa9.0xfe.0xa9.0xfe", "\uff11\uff16\uff19.254.169.254", "169\u3002254\u3002169\u3002254",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]", "[::169.254.169.254]", "[fd00:ec2::254]", "[fe80::1]", "[fe80::a9fe:a9fe]",
    "[febf::1]", "[fc00::1]", "[fd12:3456::1]", "[fdff:ffff::1]", "[fec0::1]", "[::ffff:10.0.0.1]",
    "[::ffff:192.168.0.1]", "[::ffff:172.16.0.1]", "[64:ff9b::10.0.0.1]", "[64:ff9b::192.168.0.1]",
    "[2002:0a00:0001::]", "[2002:c0a8:0001::]", "100.64.0.1", "100.127.255.254", "0x64400001",
    "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "239.255.255.250", "0xe0000001", "240.0.0.1", "255.255.255.255", "4294967295",
    "0xffffffff", "037777777777", "[ff02::1]", "[ff05::2]", "[ff0e::1]", "[100::1]",
    "[2001:db8::1]", "[2001::1]", "[2001:10::1]", "[4000::1]", "[::2]", "[::ffff:255.255.255.255]",
]  # fmt: skip

MALFORMED: Final = [
    "127.0.0.1%00.pypi.org", "127.0.0.256", "256.256.256.256", "1.2.3.4.5", "127.0.0.1.1",
    "0x7f.0.0.0x", "08.0.0.1", "4294967296", "0x1ffffffff", "pypi.org\\@127.0.0.1",
    "user@127.0.0.1", "user:word@pypi.org", "[::1%lo]", "[fe80::1%25eth0]", "[::1", "::1]", "[]",
    "[127.0.0.1]", "[::g]", "", ".", "..", "pypi..org", ".pypi.org", "-pypi.org", "pypi-.org",
    "pypi.org/", "pypi.org/127.0.0.1", "pypi.org?x", "pypi.org#x", "pypi.org;x", "*.example.org",
    "*", "a" * 64 + ".example.org", ".".join(["a" * 60] * 5), "pypi.org:80", "pypi.org:443:80",
    "127.0.0.1:80", "http://127.0.0.1", "//127.0.0.1", "pypi.org\x00", "pypi.org\t", "pypi.org\x7f",
    "xn--", "pypi.org,127.0.0.1", "%31%32%37.0.0.1", "%6cocalhost",
    "127.0.0.1\u200b", "local\u00adhost\u2028",
]  # fmt: skip

NAMES: Final = [
    "localhost", "LOCALHOST", "LocalHost", "localhost.", "\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54", "\u24dbocalhost", "localhost.localdomain",
    "ip6-localhost", "foo.localhost", "metadata", "metadata.google.internal",
    "METADATA.GOOGLE.INTERNAL.", "instance-data", "example.org", "EXAMPLE.ORG", "example.org.",
    "pypi.org.evil.test", "evilpypi.org", "pypi.org.", "notexample.org", "a.example.org.evil.test",
    "pypi.com", "xpypi.org", "pypi.orgx", "pypi_org", "www.pypi.org", "test.pypi.org",
    "pypi-org", "p\u0443pi.org", "\u0440ypi.org", "pyp\u0131.org", "pypi\u3002org\u3002evil\u3002test", "127.0.0.1.nip.test",
    "7f000001.nip.test", "evil.test", "host.docker.internal", "kubernetes.default.svc",
    "rebind.example.org", "REBIND.example.org", "rebind\u3002example\u3002org", "\uff52ebind.example.org",
    "rebind.example.org.", "six.example.org", "mapped.example.org", "meta.example.org",
    "deep.rebind.example.org", "nat.example.org", "unspecified.example.org", "lan.example.org",
    "1e3",
    "\u2488\u2488",
]  # fmt: skip

LISTED: Final = ["pypi.org:PORT", "*.example.org:PORT"]
"""What is allowed while these are tried."""

TABLE: Final = {
    "rebind.example.org": ["127.0.0.1"],
    "deep.rebind.example.org": ["127.0.0.1", "10.0.0.1"],
    "six.example.org": ["::1"],
    "mapped.example.org": ["::ffff:127.0.0.1"],
    "nat.example.org": ["64:ff9b::7f00:1"],
    "unspecified.example.org": ["0.0.0.0", "::"],  # noqa: S104  # nothing is bound
    "meta.example.org": ["169.254.169.254"],
    "lan.example.org": ["192.168.7.7", "fd00::7"],
    "pypi.org": ["127.0.0.1"],
    "localhost": ["127.0.0.1", "::1"],
    "evil.test": ["127.0.0.1"],
}
"""What names stand for in the worst case: a name's owner decides where it leads."""
