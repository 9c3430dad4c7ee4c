"""Schemas from a schema registry, through Confluent's client.

What was looked up is kept for the life of the process: a schema's id never gets another schema. A registry that does
not answer is asked again for some seconds. Then the micro-batch fails, whatever `on_error` says: the records are not
bad, and passing over them would lose them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from headrace.errors import CannotConnect, HeadraceError
from headrace.formats import Avro, JsonSchema, Protobuf, SchemaRegistry
from headrace.spark.formats.json_schema_references import bundle_references

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

__all__ = [
    "RegisteredSchema",
    "SchemaKind",
    "UnknownSchema",
    "check_registrable",
    "close_clients",
    "latest_schema",
    "registered_id",
    "schema_of_id",
]

SchemaKind: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]
_KINDS: Final[dict[type, SchemaKind]] = {Avro: "AVRO", JsonSchema: "JSON", Protobuf: "PROTOBUF"}
_KIND_NAMES: Final[dict[SchemaKind, str]] = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}
# Four pauses, 3.7 s in all: below the default transaction timeout of 10 s.
_WAITS_S: Final = (0.2, 0.5, 1.0, 2.0)
_UNAVAILABLE: Final = (429, 500, 502, 503, 504)
_NOT_AUTHORIZED: Final = (401, 403)
_NOT_COMPATIBLE: Final = (409, 422)
Found = TypeVar("Found")


class UnknownSchema(LookupError):
    """A schema that the registry does not know, or that is of another kind than the records should be."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of a registry.

    Attributes:
        text: JSON of Avro or a JSON Schema with all that it refers to written into it, or a `.proto` file.
        imports: (name, text) of the files that a `.proto` file imports, but for Google's own.
    """

    text: str
    imports: tuple[tuple[str, str], ...] = ()


def schema_of_id(registry: SchemaRegistry, schema_id: int, kind: SchemaKind = "AVRO") -> RegisteredSchema:
    """Return the schema that writers used under this id.

    Args:
        registry: The registry.
        schema_id: The id in front of their values.
        kind: What kind of schema is expected.

    Raises:
        UnknownSchema: if the registry does not know the id, or it is a schema of another kind.
        CannotConnect: if the registry does not answer.
    """
    return _schema_of_id(registry.url, _key(registry), schema_id, kind)


@lru_cache(maxsize=4096)
def _schema_of_id(url: str, config: tuple[tuple[str, str], ...], schema_id: int, kind: SchemaKind) -> RegisteredSchema:
    # Ids never change their schema, so what was found is kept; errors are not, since `lru_cache` keeps return values
    # only.
    client = _client(url, config)
    try:
        found = _request(url, lambda: client.get_schema(schema_id))
    except _Refused as refused:
        if refused.status == 404:
            raise UnknownSchema(f"the schema registry {url} has no schema with the id {schema_id}") from None
        raise refused.error(url) from None
    return _registered(url, client, found, kind, f"schema {schema_id}")


def latest_schema(registry: SchemaRegistry, subject: str, kind: SchemaKind = "AVRO") -> RegisteredSchema:
    """Return the latest schema of a subject.

    Raises:
        UnknownSchema: if it is a schema of another kind.
        HeadraceError: schema-missing if the subject has none; registry-unreachable, registry-refused.
    """
    client = _client(registry.url, _key(registry))
    try:
        found = _request(registry.url, lambda: client.get_latest_version(subject))
    except _Refused as refused:
        if refused.status == 404:
            raise HeadraceError(
                "schema-missing",
                f'the schema registry {registry.url} has no schemas for the subject "{subject}"',
                "name the subject with subject=.., or give the schema with schema=..",
                subject=subject,
            ) from None
        raise refused.error(registry.url) from None
    return _registered(registry.url, client, found.schema, kind, f'the latest schema of "{subject}"')


def registered_id(written: Avro | JsonSchema | Protobuf) -> int:
    """Return the id of a sink's schema, which is registered unless the sink forbids it. Asked once per process.

    Raises:
        HeadraceError: schema-incompatible, schema-missing, registry-unreachable, registry-refused.
    """
    return _registered_id(*_registration(written), written.auto_register)


def _registration(
    written: Avro | JsonSchema | Protobuf,
) -> tuple[str, tuple[tuple[str, str], ...], str, str, SchemaKind]:
    """Return where, under which subject and with which schema of which kind a sink registers."""
    assert written.registry is not None
    assert written.schema is not None
    assert written.subject is not None
    return written.registry.url, _key(written.registry), written.subject, written.schema, _KINDS[type(written)]


@lru_cache(maxsize=256)
def _registered_id(
    url: str, config: tuple[tuple[str, str], ...], subject: str, text: str, kind: SchemaKind, registers: bool
) -> int:
    """Look a schema up, and register it if it is not there.

    Two instances may register it at the same moment, and some registries refuse the second one (409, as if it were not
    compatible). It is there then, so it is looked up once more.
    """
    from confluent_kafka.schema_registry import Schema

    client = _client(url, config)
    schema = Schema(text, kind)

    def look_up() -> int | None:
        try:
            return _request(url, lambda: client.lookup_schema(subject, schema)).schema_id
        except _Refused as refused:
            if refused.status == 404:
                return None
            raise refused.error(url) from None

    # Looked up before registering: a registry that allows no registration still answers for a schema that is there.
    known = look_up()
    if known is not None:
        return known
    if not registers:
        raise HeadraceError(
            "schema-missing",
            f'the schema registry {url} does not have this schema under the subject "{subject}": {text}',
            "register it, or let the application do it with auto_register=True",
            subject=subject,
        )
    try:
        return _request(url, lambda: client.register_schema(subject, schema))
    except _Refused as refused:
        if refused.status not in _NOT_COMPATIBLE:
            raise refused.error(url) from None
        known = look_up()
        if known is not None:
            return known
        raise _incompatible(url, subject, refused.reason) from None


def _incompatible(url: str, subject: str, reason: str) -> HeadraceError:
    return HeadraceError(
        "schema-incompatible",
        f'the schema registry {url} refuses the schema for the subject "{subject}": {reason}',
        "keep to the subject's compatibility level (new columns with defaults, no removed ones), "
        "or write to another topic",
        subject=subject,
    )


def check_registrable(written: Avro | JsonSchema | Protobuf) -> None:
    """Check that a sink's schema could be registered, or is there. Registers nothing.

    Raises:
        HeadraceError: schema-incompatible, schema-missing, registry-unreachable, registry-refused.
    """
    from confluent_kafka.schema_registry import Schema

    if not written.auto_register:
        registered_id(written)
        return
    url, config, subject, text, kind = _registration(written)
    client, schema = _client(url, config), Schema(text, kind)
    try:
        compatible = _request(url, lambda: client.test_compatibility(subject, schema))
    except _Refused as refused:
        if refused.status == 404:  # a subject without schemas takes any
            return
        raise refused.error(url) from None
    if not compatible:
        raise _incompatible(url, subject, "it is not compatible with the schemas that are there")


class _Refused(Exception):
    """An answer of the registry that is an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    def error(self, url: str) -> HeadraceError:
        if self.status in _NOT_AUTHORIZED:
            fix = 'give it credentials: SchemaRegistry(url, {"basic.auth.user.info": "user:password"})'
            return HeadraceError("registry-refused", f"the schema registry {url} refuses us: {self.reason}", fix)
        return HeadraceError(
            "registry-refused",
            f"the schema registry {url} answers {self.status}: {self.reason}",
            "see the registry's log; try the same request with curl",
        )


def _request(url: str, request: Callable[[], Found]) -> Found:
    """Return the answer to `request`, asked again while the registry is not to be had."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    reason = ""
    for wait_s in (*_WAITS_S, None):
        try:
            return request()
        except SchemaRegistryError as error:
            if error.http_status_code not in _UNAVAILABLE:
                raise _Refused(int(error.http_status_code), str(error.error_message)) from None
            reason = f"it answers {error.http_status_code}: {error.error_message}"
        # The tuple is computed when an error is there: the HTTP library is imported with the client, not before.
        except _transport_errors() as error:
            reason = str(error) or type(error).__name__
        if wait_s is not None:
            time.sleep(wait_s)
    raise CannotConnect(
        "registry-unreachable",
        f"the schema registry {url} cannot be reached: {reason}",
        "start it, or correct the address in SchemaRegistry(..)",
        url=url,
    )


@lru_cache(maxsize=1)
def _transport_errors() -> tuple[type[Exception], ...]:
    """The errors of the HTTP library that this version of Confluent's client uses."""
    from confluent_kafka.schema_registry import _sync

    # Confluent's client raises the errors of its HTTP library unchanged.
    client: Any = _sync.schema_registry_client
    library = getattr(client, "httpx", None) or getattr(client, "httpx2", None)
    return (OSError,) if library is None else (library.TransportError, OSError)


def _key(registry: SchemaRegistry) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(registry.config.items()))


@lru_cache(maxsize=16)
def _client(url: str, config: tuple[tuple[str, str], ...]) -> SchemaRegistryClient:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    client = SchemaRegistryClient({"url": url, **dict(config)})
    _OPEN.append(client)
    return client


_OPEN: Final[list[SchemaRegistryClient]] = []


def close_clients() -> None:
    """Close the connections to all registries; what was looked up stays known."""
    # A later call makes a new client; one that was closed must not come out of the cache.
    _client.cache_clear()
    while _OPEN:
        _OPEN.pop().close()


def _registered(url: str, client: SchemaRegistryClient, found: Any, kind: SchemaKind, what: str) -> RegisteredSchema:
    """Return a schema with the schemas that it refers to."""
    if found.schema_type != kind:
        raise UnknownSchema(f"{what} of the registry {url} is {found.schema_type}, not {_KIND_NAMES[kind]}")
    if not found.references:
        return RegisteredSchema(str(found.schema_str))
    definitions: dict[str, str] = {}
    _gather(url, client, found, definitions)
    if kind == "JSON":
        return RegisteredSchema(bundle_references(str(found.schema_str), definitions))
    if kind == "PROTOBUF":
        return RegisteredSchema(str(found.schema_str), tuple(sorted(definitions.items())))
    parsed = {name: json.loads(text) for name, text in definitions.items()}
    return RegisteredSchema(json.dumps(_expanded(json.loads(found.schema_str), parsed, set())))


def _gather(url: str, client: SchemaRegistryClient, schema: Any, definitions: dict[str, str]) -> None:
    for reference in schema.references or ():
        # Schemas may refer to the same one several times. Each is fetched once.
        if reference.name in definitions:
            continue
        found = _request(url, lambda r=reference: client.get_version(r.subject, r.version)).schema  # type: ignore[misc]
        definitions[reference.name] = str(found.schema_str)
        _gather(url, client, found, definitions)


def _expanded(schema: Any, definitions: dict[str, Any], defined: set[str]) -> Any:
    """Inline each definition where its name is used first, so that the schema needs no references."""
    if isinstance(schema, str):
        if schema not in definitions or schema in defined:
            return schema
        # Avro allows one definition per name; every later use is the name alone.
        defined.add(schema)
        return _expanded(definitions[schema], definitions, defined)
    if isinstance(schema, list):
        return [_expanded(branch, definitions, defined) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("type", "items", "values"):
        if name in found:
            found[name] = _expanded(found[name], definitions, defined)
    if isinstance(found.get("fields"), list):
        found["fields"] = [{**f, "type": _expanded(f["type"], definitions, defined)} for f in found["fields"]]
    return found
