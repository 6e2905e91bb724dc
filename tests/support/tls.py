"""Certificates for the tests of TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_tls(folder, days=1):
    """Make a CA and a server's certificate for 127.0.0.1, for so long; return the folder."""
    folder.mkdir()
    now = datetime.now(UTC)
    names = {who: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in "ab"}
    keys = {who: ec.generate_private_key(ec.SECP256R1()) for who in "ab"}

    def sign(who, extension):
        made = x509.CertificateBuilder(names["a"], names[who], keys[who].public_key())
        made = made.serial_number(x509.random_serial_number()).add_extension(extension, True)
        made = made.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(days))
        return made.sign(keys["a"], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    (folder / "ca.crt").write_bytes(sign("a", x509.BasicConstraints(True, None)))
    (folder / "server.crt").write_bytes(sign("b", address))
    (folder / "server.key").write_bytes(
        keys["b"].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder
