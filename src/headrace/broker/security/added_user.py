"""Users that are given to a broker at its start, as kafka-storage takes them."""

from __future__ import annotations

import secrets

from headrace.broker.security.scram_credentials import AddedUser
from headrace.errors import ConfigError
from headrace.protocol.sasl.scram import MAX_STORED_ITERATIONS, MECHANISMS, credential_of, salted_password

__all__ = ["parse_added_user"]

_SALT_BYTES = 20


def parse_added_user(text: str) -> AddedUser:
    """`SCRAM-SHA-512=[name=alice,password=secret,iterations=8192]`, as kafka-storage takes it: user, mechanism,
    credential. Raises ConfigError `bad-value`, which never repeats the text."""
    name, separator, rest = text.strip().partition("=")
    mechanism = MECHANISMS.get(name.strip())
    if mechanism is None or not separator or not (rest.startswith("[") and rest.endswith("]")):
        raise _refusal("it is not understood")
    options = dict(part.partition("=")[::2] for part in rest[1:-1].split(","))
    strange = set(options) - {"name", "password", "iterations"}
    if strange or not options.get("name") or not options.get("password"):
        raise _refusal("name and password are needed, iterations are possible")
    iterations = options.get("iterations", str(mechanism.min_iterations))
    if not iterations.isdigit() or not mechanism.min_iterations <= int(iterations) <= MAX_STORED_ITERATIONS:
        raise _refusal(f"iterations must be a number from {mechanism.min_iterations} to {MAX_STORED_ITERATIONS}")
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, options["password"], salt, int(iterations))
    return options["name"], mechanism.name, credential_of(mechanism, salted, salt, int(iterations))


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"A SCRAM user that was to be added cannot be read: {why}.",
        "Write it as kafka-storage takes it: SCRAM-SHA-512=[name=alice,password=…].",
    )
