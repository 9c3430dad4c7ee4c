"""Certificates for tests, made by the openssl command: an authority, a server of the loopback, clients."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["Certificates"]

LOOPBACK = "DNS:localhost,IP:127.0.0.1"


class Certificates:
    """`authority` signs `server` (key and certificate in one PEM) and what `issue` makes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = directory / "authority.pem"
        self._key = directory / "authority.key"
        subject = ["-subj", "/CN=Test Authority", "-days", "3"]
        # Since Python 3.13 default contexts of clients check RFC 5280 strictly: usage of the key, ids of both keys.
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.authority, *subject, *usage)
        self.server = self.issue("server", "/CN=localhost", LOOPBACK)

    def issue(self, name: str, subject: str, names: str = "", *, days: int = 3) -> Path:
        """A PEM file with key and certificate; `days` below 0: it has expired."""
        key, request, pem = (self.directory / f"{name}.{ending}" for ending in ("key", "csr", "pem"))
        _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", subject)
        extensions = self.directory / f"{name}.ext"
        lines = ["basicConstraints=CA:FALSE", "subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid"]
        lines += [f"subjectAltName={names}"] if names else []
        extensions.write_text("\n".join(lines) + "\n")
        certificate = self.directory / f"{name}.crt"
        signing = ["-CA", self.authority, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions]
        period = ["-days", days]
        _openssl("x509", "-req", "-in", request, *signing, "-out", certificate, *period)
        pem.write_text(key.read_text() + certificate.read_text())
        pem.chmod(0o600)
        return pem


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    command = ["openssl", *(str(each) for each in arguments)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{' '.join(command)}:\n{made.stderr}"
