"""SASL mechanisms: PLAIN, OAUTHBEARER (the client's side) and SCRAM (both sides). Pure: nonces and salts are arguments.

PLAIN (RFC 4616): one message that holds the password in clear text, so it needs TLS.
OAUTHBEARER (RFC 7628, KIP-255): one message with a token in it.

SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), without channel binding:
```
client-first   n,,n=alice,r=<client nonce>
server-first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
client-final   c=biws,r=<both nonces>,p=<proof>
server-final   v=<server signature>     or e=<error>
```
The server stores salt, iterations, StoredKey and ServerKey; none of them is enough to log in. An unknown user name gets
a made-up salt and is refused only after its proof, so that a client cannot find out which users exist.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace.protocol.sasl import SaslError, ScramCredential

__all__ = [
    "MAX_CLIENT_ITERATIONS",
    "MAX_STORED_ITERATIONS",
    "MECHANISMS",
    "OAUTHBEARER",
    "ScramClient",
    "ScramMechanism",
    "ScramServer",
    "bearer_message",
    "credential_of",
    "mechanism_by_code",
    "plain_message",
    "read_plain_message",
    "salted_password",
]


def plain_message(username: str, password: str) -> bytes:
    """Return the client's only message: an empty authorization id, the user name and the password."""
    return f"\0{username}\0{password}".encode()


def read_plain_message(message: bytes) -> tuple[str, str, str]:
    """Return (authorization id, user name, password). Raises SaslError in Kafka's words."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslError("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}", is_for_client=True)
    authorization_id, username, password = parts
    # Kafka's order and words (`PlainSaslServer`), which its clients show to users.
    if not username:
        raise SaslError("Authentication failed: username not specified", is_for_client=True)
    if not password:
        raise SaslError("Authentication failed: password not specified", is_for_client=True)
    return authorization_id, username, password


OAUTHBEARER = "OAUTHBEARER"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


def bearer_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """Return the first message of the client. Raises SaslError for what the RFC does not allow; it names no secret."""
    if not _TOKEN.fullmatch(token):
        raise SaslError("the token provider gave something that is no bearer token (RFC 6750)")
    pairs = []
    for name, value in (extensions or {}).items():
        # `auth` is the key of the token itself, so an extension of that name would replace it.
        if name == "auth" or not _EXTENSION.fullmatch(name) or not _VALUE.fullmatch(value):
            raise SaslError(f"the token provider gave an extension {name!r} that RFC 7628 does not allow")
        pairs.append(f"{name}={value}\x01")
    return f"n,,\x01auth=Bearer {token}\x01{''.join(pairs)}\x01".encode()


MAX_STORED_ITERATIONS: Final = 16384  # Kafka's, of credentials that a broker stores
# A client computes as many rounds as the server asks for, and a rogue server may ask for 999,999,999 (eight minutes).
# One million rounds take half a second; servers other than Kafka may store more than Kafka's 16,384.
MAX_CLIENT_ITERATIONS: Final = 1_000_000
_NO_BINDING = "n,,"
# Attributes that either side may add are passed over; a mandatory extension (m=) is refused.
_CLIENT_FIRST = re.compile(r"n,(?:a=(?P<authzid>[^,]*))?,n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)(?P<more>(?:,.*)?)\Z")
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9/+=]+),i=(?P<iterations>[0-9]{1,9})(?:,.*)?\Z"
)
_CLIENT_FINAL = re.compile(
    r"(?P<head>c=(?P<binding>[A-Za-z0-9/+=]+),r=(?P<nonce>[!-+\--~]+)(?:,.*)?),p=(?P<proof>[^,]+)\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramMechanism:
    """`code` stands in Kafka's requests; `min_iterations` is what RFC 7677 and Kafka ask for."""

    name: str
    code: int
    hash_name: str
    min_iterations: int = 4096

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)


MECHANISMS: Final[Mapping[str, ScramMechanism]] = MappingProxyType(
    {
        "SCRAM-SHA-256": ScramMechanism(name="SCRAM-SHA-256", code=1, hash_name="sha256"),
        "SCRAM-SHA-512": ScramMechanism(name="SCRAM-SHA-512", code=2, hash_name="sha512"),
    }
)


def mechanism_by_code(code: int) -> ScramMechanism | None:
    """Return the mechanism with that number in AlterUserScramCredentials, or None."""
    return next((mechanism for mechanism in MECHANISMS.values() if mechanism.code == code), None)


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hash a password by Hi() of RFC 5802: slow on purpose, some milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Derive what the server stores from a salted password (StoredKey and ServerKey of RFC 5802, section 3)."""
    return ScramCredential(
        salt=salt,
        stored_key=mechanism.hash(mechanism.hmac(salted, b"Client Key")),
        server_key=mechanism.hmac(salted, b"Server Key"),
        iterations=iterations,
    )


class ScramServer:
    """The server's side of one login.

    `evaluate` takes the client's two messages in order; after the second one `username` is set and `complete` is true.

    Args:
        nonce: random part of the server's nonce; the caller provides the randomness.
        credential: returns the stored credential of a user, or None.
        secret: key from which the salt of an unknown user is derived, the same one at each attempt.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        nonce: str,
        credential: Callable[[str], ScramCredential | None],
        secret: bytes,
    ) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._credential_of = credential
        self._secret = secret
        self._known = False
        self._credential: ScramCredential | None = None
        self._first = ""
        self._both_nonces = ""
        self.username = ""
        self.complete = False

    def evaluate(self, message: bytes) -> bytes:
        """Return the response to a message. Raises SaslError."""
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise SaslError("a SCRAM message is not UTF-8") from None
        if self.complete:
            raise SaslError("a SCRAM message behind the last one")
        return self._answer_first(text) if self._credential is None else self._answer_final(text)

    def _answer_first(self, text: str) -> bytes:
        found = _CLIENT_FIRST.match(text)
        if found is None:
            raise SaslError("the first SCRAM message is not understood")
        username = _unescaped(found["name"])
        # RFC 5802: a mandatory extension that is not understood must end the exchange; optional ones are ignored.
        if any(part.startswith("m=") for part in found["more"].split(",")):
            raise SaslError("a mandatory SCRAM extension is not understood")
        if found["authzid"] and _unescaped(found["authzid"]) != username:
            raise SaslError(
                "Authentication failed: Client requested an authorization id that is different from username",
                is_for_client=True,
            )
        self.username = username
        # An unknown user gets the same dialogue as a known one, with a salt that depends on the name only. Otherwise a
        # client could list users by asking for their salts (RFC 5802, section 9).
        credential = self._credential_of(username)
        self._known = credential is not None
        self._credential = credential or self._made_up(username)
        self._both_nonces = found["nonce"] + self._nonce
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={self._both_nonces},s={salt},i={self._credential.iterations}"
        self._first = f"{text[found.start('name') - 2 :]},{answer}"
        return answer.encode()

    def _answer_final(self, text: str) -> bytes:
        credential, mechanism = self._credential, self._mechanism
        found = _CLIENT_FINAL.match(text)
        if found is None or credential is None:
            raise SaslError("the last SCRAM message is not understood")
        if not hmac.compare_digest(found["nonce"], self._both_nonces):
            raise SaslError("the last SCRAM message has another nonce")
        # The client repeats what it sent first (`n,,`). `y` would mean that it supports channel binding and believes
        # that the server does not.
        if not _base64(found["binding"]).startswith(b"n,"):
            raise SaslError("SCRAM channel binding is not supported")
        # RFC 5802, section 3: the proof is the client key XOR the client signature. The server knows H(client key)
        # only, so it computes the signature, recovers the client key from the proof and compares its hash. Both
        # comparisons take constant time.
        proof = _base64(found["proof"])
        signed = f"{self._first},{found['head']}".encode()
        client_key = _xor(proof, mechanism.hmac(credential.stored_key, signed))
        right = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if not (right and self._known):
            raise SaslError("invalid credentials")
        self.complete = True
        return b"v=" + b64encode(mechanism.hmac(credential.server_key, signed))

    def _made_up(self, username: str) -> ScramCredential:
        """The same for the same name, so that asking twice tells nothing."""
        seed = self._mechanism.hmac(self._secret, f"{self._mechanism.name}:{username}".encode())
        return ScramCredential(
            salt=seed[:_SALT_BYTES],
            stored_key=self._mechanism.hash(seed),
            server_key=seed,
            iterations=self._mechanism.min_iterations,
        )


_SALT_BYTES = 20  # as many as Kafka's tools make


class ScramClient:
    """One login from the client's side: `first()`, `final(server_first)`, then `verify(server_final)`."""

    def __init__(self, mechanism: ScramMechanism, username: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_NO_BINDING + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the final message of the client, with the proof of the password.

        Raises SaslError where the server asks for too little, or answers another client.
        """
        found = _SERVER_FIRST.match(server_first.decode("utf-8", "replace"))
        if found is None:
            raise SaslError("the broker's first SCRAM message is not understood")
        iterations, mechanism = int(found["iterations"]), self._mechanism
        # The server appends to the client's nonce. One that is unchanged would make the exchange replayable.
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise SaslError("the broker answers another login than this one")
        # A rogue server could ask for one round, and try passwords against the proof at leisure.
        if iterations < mechanism.min_iterations:
            raise SaslError(f"the broker asks for {iterations} iterations; {mechanism.min_iterations} are the least")
        if iterations > MAX_CLIENT_ITERATIONS:
            raise SaslError(f"the broker asks for {iterations} iterations; {MAX_CLIENT_ITERATIONS} are the most")
        # The steps of RFC 5802, section 3, under its names: SaltedPassword, ClientKey, StoredKey = H(ClientKey),
        # ClientSignature over the three messages so far, ClientProof; ServerSignature is kept for `verify`.
        salted = salted_password(mechanism, self._password, _base64(found["salt"]), iterations)
        head = f"c={b64encode(_NO_BINDING.encode()).decode()},r={found['nonce']}"
        signed = f"{self._bare},{server_first.decode()},{head}".encode()
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = _xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{head},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Verify that the broker knows the password too. Raises SaslError."""
        # `v=` is the server's signature, `e=` an error; anything behind a comma is an extension.
        kind, _, value = server_final.decode("utf-8", "replace").split(",")[0].partition("=")
        if kind != "v" or not self._signature or not hmac.compare_digest(_base64(value), self._signature):
            raise SaslError("the broker could not show that it knows the password")


def _unescaped(name: str) -> str:
    # RFC 5802: `,` and `=` of a name are sent as `=2C` and `=3D`; any other `=` is invalid.
    if re.search(r"=(?!2C|3D)", name):
        raise SaslError("a user name has '=' in it that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("a SCRAM message holds bytes that are no base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise SaslError("a SCRAM proof has the wrong length")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
