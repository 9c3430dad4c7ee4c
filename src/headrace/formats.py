"""Formats of values and keys with a schema: `Avro`, `JsonSchema`, `Protobuf`; schemas may be in a registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.checked_api import checked_api
from headrace.errors import ConfigError

__all__ = ["Avro", "JsonSchema", "Protobuf", "SchemaRegistry"]


@checked_api()
@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A schema registry with Confluent's interface, as Confluent's own, Karapace, Apicurio (`/apis/ccompat/v7`).

    Attributes:
        url: Its address; several, separated by commas, are tried in turn.
        config: Further settings by the names of Confluent's client, for example `basic.auth.user.info`,
            `ssl.ca.location`, `bearer.auth.token`. They are not shown in descriptions and logs.

    Example:
        SchemaRegistry("https://registry:8081", {"basic.auth.user.info": "user:password"})
    """

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if "@" in self.url:  # addresses are shown in errors and logs
            raise ConfigError(
                "bad-value",
                "the address of the schema registry must not hold a user and a password",
                'write SchemaRegistry("https://host:8081", {"basic.auth.user.info": "user:password"})',
            )
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                "bad-value",
                f"{self.url!r} is no address of a schema registry",
                'write SchemaRegistry("http://host:8081")',
            )
        if "url" in self.config:
            raise ConfigError("bad-value", "config= must not hold the url", 'write SchemaRegistry("http://host:8081")')


@checked_api()
@dataclass(frozen=True, slots=True)
class Avro:
    """Avro values and keys: `value=Avro(registry=SchemaRegistry("http://localhost:8081"))`.

    With a registry each record begins with a zero byte and the four bytes of its schema's id, as Confluent's
    serializers write it. Without one a record is nothing but Avro of `schema`.

    Attributes:
        registry: Where writers' schemas are looked up, and sinks' schemas registered.
        schema: The schema as JSON. A source takes the latest of its subject if this is None; a sink makes one of its
            columns.
        subject: The registry's name for the schemas; by default `<topic>-value`, and `<topic>-key` for keys.
        auto_register: Whether a sink registers its schema; otherwise it must be there.
    """

    registry: SchemaRegistry | None = None
    schema: str | None = None
    subject: str | None = None
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check_has_schema(self, "its JSON")


@checked_api()
@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON values and keys that belong to a JSON Schema: `value=JsonSchema(registry=..)`.

    With a registry each record begins with a zero byte and the four bytes of its schema's id, as Confluent's
    serializers write it. Without one a record is nothing but JSON, and `schema` gives the columns.

    Attributes:
        registry: Where writers' schemas are looked up, and sinks' schemas registered.
        schema: The schema as JSON. A source takes the latest of its subject if this is None; a sink makes one of its
            columns.
        subject: The registry's name for the schemas; by default `<topic>-value`, and `<topic>-key` for keys.
        auto_register: Whether a sink registers its schema; otherwise it must be there.
    """

    registry: SchemaRegistry | None = None
    schema: str | None = None
    subject: str | None = None
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check_has_schema(self, "its JSON")


@checked_api()
@dataclass(frozen=True, slots=True)
class Protobuf:
    """Protobuf values and keys: `value=Protobuf(registry=SchemaRegistry("http://localhost:8081"))`.

    With a registry each record begins with a zero byte, the four bytes of its schema's id and the place of its message
    in the schema, as Confluent's serializers write it. Without one a record is nothing but a message of `schema`.

    Attributes:
        registry: Where writers' schemas are looked up, and sinks' schemas registered.
        schema: The text of a `.proto` file. A source takes the latest of its subject if this is None.
        message: Which of the file's messages; by default the first.
        imports: The texts of `.proto` files that `schema` imports, by the names of its imports. Google's own are there.
        subject: The registry's name for the schemas; by default `<topic>-value`, and `<topic>-key` for keys.
        auto_register: Whether a sink registers its schema; otherwise it must be there.
    """

    registry: SchemaRegistry | None = None
    schema: str | None = None
    message: str | None = None
    imports: Mapping[str, str] = field(default_factory=dict, hash=False)
    subject: str | None = None
    auto_register: bool = True

    def __post_init__(self) -> None:
        _check_has_schema(self, "the text of a .proto file")

    @property
    def import_files(self) -> tuple[tuple[str, str], ...]:
        """The imported files as (name, text), sorted by name."""
        return tuple(sorted(self.imports.items()))


def _check_has_schema(serde: Avro | JsonSchema | Protobuf, text: str) -> None:
    """Raise ConfigError for a format without a schema; `text` describes what a schema is."""
    name = type(serde).__name__
    if serde.registry is None and serde.schema is None:
        raise ConfigError(
            "bad-value",
            f"{name} needs a schema registry or a schema",
            f'write {name}(registry=SchemaRegistry("http://localhost:8081")), or {name}(schema=..) with {text}',
        )
    if serde.registry is None and serde.subject is not None:
        raise ConfigError("bad-value", "subject= names schemas of a registry", "give registry= as well")
