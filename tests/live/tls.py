"""A unix socket offered by TLS to who has a certificate, as an engine does it."""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentsvc.base.values import now


def make_certificates(directory: Path, *addresses: str) -> tuple[Path, Path]:
    """Return two directories with ca.pem, cert.pem and key.pem: a server's and a client's.

    Without addresses they are for this machine's own.
    """
    addresses = addresses or ("127.0.0.1",)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign("the authority", authority_key, "the authority", authority_key, addresses)
    found = []
    for name in ("server", "client"):
        place = directory / name
        place.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(name, key, "the authority", authority_key, addresses)
        (place / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        (place / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (place / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        found.append(place)
    return found[0], found[1]


def _sign(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: str,
    signing_key: ec.EllipticCurvePrivateKey,
    addresses: Sequence[str],
) -> x509.Certificate:
    is_authority = name == signer
    ours = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, signer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        # Pythons from 3.13 on want to know whose key is whose, and what for.
        .add_extension(ours, critical=False)
        .add_extension(signers, critical=False)
        .add_extension(_usage(is_authority=is_authority), critical=True)
        .sign(signing_key, hashes.SHA256())
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


@contextlib.asynccontextmanager
async def carry(socket: Path, certificates: Path) -> AsyncIterator[int]:
    """Give the port at which the socket is offered."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        finally:
            far_writer.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
