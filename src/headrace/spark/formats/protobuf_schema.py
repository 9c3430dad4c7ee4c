"""Protobuf schemas: compiling `.proto` files, and the Spark types that belong to their messages.

The mapping is Spark's (`org.apache.spark.sql.protobuf.utils.SchemaConverters`) with `upcast.unsigned.ints` and
`emit.default.values`: unsigned numbers get a type that holds them all, and a field that proto3 does not write because
it has its default is that default, not null. A `google.protobuf.Duration` is an ordinary message here.
"""

from __future__ import annotations

import base64
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.child_process import python_module

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

__all__ = [
    "FIRST_SECOND",
    "LAST_SECOND",
    "TIMESTAMP",
    "ProtobufEnum",
    "ProtobufField",
    "ProtobufMessage",
    "ProtobufSchemaError",
    "compile_proto",
    "index_path",
    "message_at",
    "message_of",
    "proto_of",
    "spark_columns",
]

TIMESTAMP: Final = "google.protobuf.Timestamp"
# google.protobuf.Timestamp: from 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999999Z.
FIRST_SECOND: Final = -62_135_596_800
LAST_SECOND: Final = 253_402_300_799
_MAIN: Final = "headrace_value.proto"  # what the schema's own file is called where it is compiled
_MOST_NESTED: Final = 32
_COMPILE_TIMEOUT_S: Final = 60
_LOG_LINE: Final = re.compile("WARNING: All log messages|[IWE][0-9]{4} ")  # of the compiler's log library
# google.protobuf.FieldDescriptor.TYPE_*, by number.
_KINDS: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string",
    10: "group", 11: "message", 12: "bytes", 13: "uint32", 14: "enum", 15: "sfixed32", 16: "sfixed64", 17: "sint32",
    18: "sint64",
}  # fmt: skip
_SPARK_TYPES: Final[dict[str, DataType]] = {
    "double": DoubleType(), "float": FloatType(), "bool": BooleanType(), "string": StringType(), "bytes": BinaryType(),
    "enum": StringType(),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), IntegerType()),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), LongType()),
    **dict.fromkeys(("uint64", "fixed64"), DecimalType(20, 0)),
}  # fmt: skip


class ProtobufSchemaError(ValueError):
    """A schema that is no `.proto` file, or whose message has no Spark type; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ProtobufEnum:
    """An enum: its names by number. A closed one (proto2) takes no other numbers."""

    name: str
    names: tuple[tuple[int, str], ...]  # sorted; of several names of a number the first
    numbers: tuple[tuple[str, int], ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """A field of a message.

    Attributes:
        name: Its name.
        number: What identifies it in the bytes.
        kind: The name of its type in `.proto` files; "message" and "enum" for those declared there.
        repeated: Whether it is a list or a map.
        has_presence: Whether a value that was not written can be told from the default.
        packed: Whether writers put all items of a list behind one tag.
        required: Whether proto2 demands it.
        oneof: The number of the `oneof` in its message of which only one field can be there; -1 if it is in none.
        message: Type of a message; of a map the type of its entries.
        is_map: Whether it is a map.
        enum: Type of an enum.
    """

    name: str
    number: int
    kind: str
    repeated: bool = False
    has_presence: bool = False
    packed: bool = False
    required: bool = False
    oneof: int = -1
    message: ProtobufMessage | None = None
    is_map: bool = False
    enum: ProtobufEnum | None = None

    @property
    def declared(self) -> str:
        """Its type as messages show it."""
        if self.is_map:
            return "a map"
        name = self.message.name if self.message is not None else self.enum.name if self.enum is not None else self.kind
        return f"repeated {name}" if self.repeated else name


@dataclass(frozen=True, slots=True)
class ProtobufMessage:
    """A message type with its fields by ascending number."""

    name: str
    fields: tuple[ProtobufField, ...]


@lru_cache(maxsize=256)
def compile_proto(text: str, imports: tuple[tuple[str, str], ...] = ()) -> FileDescriptor:
    """Return the compiled file, kept for the next call.

    Args:
        text: The `.proto` file.
        imports: (name, text) of the files that it imports; Google's own are there.

    Raises:
        ProtobufSchemaError: with the compiler's message.
    """
    from google.protobuf.descriptor_pool import DescriptorPool

    # A pool of its own: Python's default pool refuses a second file of the same name with other content, and every
    # schema has the name `_MAIN` here.
    pool = DescriptorPool()
    for file in _files(text, imports):
        pool.Add(file)
    found: FileDescriptor = pool.FindFileByName(_MAIN)
    return found


def _files(text: str, imports: tuple[tuple[str, str], ...]) -> list[FileDescriptorProto]:
    """Return the descriptors of a file and of all that it imports, those of imports first.

    Confluent's Python serializer registers a descriptor in base64. Confluent's registry makes text of it, others return
    it as it is. What such a file imports is compiled by way of a file that imports the same.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    decoded = _decoded(text)
    if decoded is None:
        return list(FileDescriptorSet.FromString(_descriptor_set(text, imports)).file)
    for name, content in imports:
        if _decoded(content) is not None:
            raise ProtobufSchemaError(f"its import {name} is a serialized descriptor; give it as text in imports=")
    # A small file that imports the same is compiled for the descriptors of the imports, and is left out itself.
    decoded.name = _MAIN
    importing = "".join(f'import "{name}";\n' for name in decoded.dependency)
    compiled = FileDescriptorSet.FromString(_descriptor_set(f'syntax = "proto3";\n{importing}', imports))
    return [*(file for file in compiled.file if file.name != _MAIN), decoded]


def _decoded(text: str) -> FileDescriptorProto | None:
    """Return the descriptor that a text without white space and braces is in base64; None for the text of a file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def _descriptor_set(text: str, imports: tuple[tuple[str, str], ...]) -> bytes:
    """Return the FileDescriptorSet that Google's compiler makes; it runs as a child, since it exits on errors."""
    import grpc_tools

    own = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as folder:
        for name, content in (*imports, (_MAIN, text)):
            # Names of imports come from a registry. `../` in one would write outside of the temporary folder.
            path = (Path(folder) / name).resolve()
            if not path.is_relative_to(Path(folder).resolve()):
                raise ProtobufSchemaError(f"the import {name!r} leaves its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        out = Path(folder) / "descriptors"
        command = python_module("grpc_tools.protoc", "-I.", f"-I{own}", f"--descriptor_set_out={out}")
        run = subprocess.run(
            [*command, "--include_imports", _MAIN],
            capture_output=True,
            text=True,
            timeout=_COMPILE_TIMEOUT_S,
            cwd=folder,
        )
        if run.returncode:
            lines = [line for line in run.stderr.splitlines() if not _LOG_LINE.match(line)]
            reason = "; ".join(lines).replace(f"{_MAIN}:", "line ")
            raise ProtobufSchemaError(f"it is no .proto file: {reason}")
        return out.read_bytes()


@lru_cache(maxsize=256)
def message_of(text: str, imports: tuple[tuple[str, str], ...], name: str | None) -> ProtobufMessage:
    """Return a message type of a file, by default the first one. Kept for the next call.

    Args:
        text: The `.proto` file.
        imports: (name, text) of the files that it imports.
        name: With or without the package.

    Raises:
        ProtobufSchemaError: if there is none, or it contains itself.
    """
    return _message(_descriptor(compile_proto(text, imports), name), (), "")


def _descriptor(file: FileDescriptor, name: str | None) -> Descriptor:
    if not file.message_types_by_name:
        raise ProtobufSchemaError("the file declares no message")
    if name is None:
        first: Descriptor = next(iter(file.message_types_by_name.values()))  # in the order of the file
        return first
    # Messages within messages have names like `Outer.Inner`, so they are looked up level by level.
    local = name.removeprefix(f"{file.package}.") if file.package else name
    outer, *inner = local.split(".")
    found = file.message_types_by_name.get(outer)
    for part in inner:
        found = found.nested_types_by_name.get(part) if found is not None else None
    if found is None:
        raise ProtobufSchemaError(f"the file declares no message {name}; {', '.join(file.message_types_by_name)}")
    return found


def index_path(text: str, imports: tuple[tuple[str, str], ...], name: str | None) -> tuple[int, ...]:
    """Return the places of a message and of those around it in their file, which records carry behind the schema's id.

    Raises:
        ProtobufSchemaError: as `message_of`.
    """
    file = compile_proto(text, imports)
    found = _descriptor(file, name)
    path: list[int] = []
    while found.containing_type is not None:
        path.insert(0, _place(found, found.containing_type.nested_types))
        found = found.containing_type
    return (_place(found, file.message_types_by_name.values()), *path)


def _place(message: Descriptor, declared: Iterable[Descriptor]) -> int:
    return [other.full_name for other in declared].index(message.full_name)


def message_at(text: str, imports: tuple[tuple[str, str], ...], path: tuple[int, ...]) -> ProtobufMessage:
    """Return the message type at the places that a record names.

    Raises:
        ProtobufSchemaError: if there is none, or it contains itself.
    """
    file = compile_proto(text, imports)
    types = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for place in path:
        if not 0 <= place < len(types):
            raise ProtobufSchemaError(f"the file has no message at {list(path)}")
        found = types[place]
        types = list(found.nested_types)
    if found is None:
        raise ProtobufSchemaError("the record names no message")
    return _message(found, (), "")


def _message(message: Descriptor, within: tuple[str, ...], path: str) -> ProtobufMessage:
    # `within` is the path from the outermost message, not all messages seen: a message that is used twice is no
    # recursion.
    if message.full_name in within:
        raise ProtobufSchemaError(
            f"{path or message.name}: {message.full_name} contains itself, which no Spark type can express"
        )
    if len(within) >= _MOST_NESTED:
        raise ProtobufSchemaError(f"{path}: more than {_MOST_NESTED} messages within each other")
    within = (*within, message.full_name)
    fields = [_field(field, within, f"{path}.{field.name}".lstrip(".")) for field in message.fields]
    return ProtobufMessage(message.full_name, tuple(sorted(fields, key=lambda field: field.number)))


def _field(field: FieldDescriptor, within: tuple[str, ...], path: str) -> ProtobufField:
    kind = _KINDS[field.type]
    if kind == "group":
        raise ProtobufSchemaError(f"{path}: groups of proto2 are not supported")
    inner = field.message_type
    message = _message(inner, within, path) if inner is not None else None
    oneof = field.containing_oneof
    # A map is `repeated` in the descriptor: its entries are messages of key and value, and written so.
    return ProtobufField(
        name=field.name,
        number=field.number,
        kind=kind,
        repeated=field.is_repeated,
        has_presence=field.has_presence,
        packed=bool(field.is_packed),
        required=field.is_required,
        oneof=-1 if oneof is None else oneof.index,
        message=message,
        is_map=inner is not None and bool(inner.GetOptions().map_entry),
        enum=_enum(field.enum_type) if field.enum_type is not None else None,
    )


def _enum(enum: EnumDescriptor) -> ProtobufEnum:
    # `allow_alias` gives one number several names. The first is shown; all of them are accepted when writing.
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    numbers = tuple((value.name, value.number) for value in enum.values)
    return ProtobufEnum(enum.full_name, tuple(sorted(names.items())), numbers, bool(enum.is_closed))


def spark_columns(message: ProtobufMessage) -> StructType:
    """Return the columns of a message. A field whose message is empty has no column, as in Spark.

    Raises:
        ProtobufSchemaError: for two fields whose names differ in case only.
    """
    fields: list[StructField] = []
    for field in message.fields:
        kind = spark_type(field)
        if kind is None:
            continue
        if any(field.name.lower() == other.name.lower() for other in fields):
            raise ProtobufSchemaError(f"{message.name} has two fields {field.name} to Spark, which ignores case")
        fields.append(StructField(field.name, kind))
    return StructType(fields)


def spark_type(field: ProtobufField) -> DataType | None:
    """Return the type of a field's column; None for messages without fields."""
    if field.is_map:
        assert field.message is not None
        key, value = (spark_type(part) for part in field.message.fields)
        return None if key is None or value is None else MapType(key, value)
    if field.message is not None:
        inner: DataType | None = TimestampType()
        if field.message.name != TIMESTAMP:
            columns = spark_columns(field.message)
            inner = columns if columns.fields else None
    else:
        inner = _SPARK_TYPES[field.kind]
    if inner is None:
        return None
    return ArrayType(inner) if field.repeated else inner


def proto_of(columns: StructType, name: str) -> str:
    """Return a `.proto` file with a message of these columns, to be completed and kept by its owner.

    Args:
        columns: The columns.
        name: Of the message.

    Raises:
        ProtobufSchemaError: for a type that Protobuf does not have.
    """
    messages: list[str] = []
    _write_message(columns, name, messages)
    needs_time = any("google.protobuf.Timestamp" in message for message in messages)
    imported = 'import "google/protobuf/timestamp.proto";\n' if needs_time else ""
    return 'syntax = "proto3";\n' + imported + "\n".join(reversed(messages))


def _write_message(columns: StructType, name: str, messages: list[str]) -> None:
    lines = []
    for number, field in enumerate(columns.fields, 1):
        nested = f"{name}_{field.name}"
        match field.dataType:
            case ArrayType() as kind:
                declared = f"repeated {_proto_type(kind.elementType, nested, field.name, messages)}"
            case MapType() as kind:
                key = _proto_type(kind.keyType, nested, field.name, messages)
                declared = f"map<{key}, {_proto_type(kind.valueType, nested, field.name, messages)}>"
            case kind:
                # `optional` gives a field presence: without it, a null would be written as the type's default and read
                # as that.
                declared = f"optional {_proto_type(kind, nested, field.name, messages)}"
        lines.append(f"  {declared} {field.name} = {number};")
    messages.append(f"message {name} {{\n" + "\n".join(lines) + "\n}")


def _proto_type(kind: DataType, nested: str, path: str, messages: list[str]) -> str:
    if isinstance(kind, StructType):
        _write_message(kind, nested, messages)
        return nested
    names: Mapping[str, str] = {
        "boolean": "bool", "tinyint": "int32", "smallint": "int32", "int": "int32", "bigint": "int64",
        "float": "float", "double": "double", "string": "string", "binary": "bytes", "timestamp": TIMESTAMP,
    }  # fmt: skip
    found = names.get(kind.simpleString())
    if found is None:
        raise ProtobufSchemaError(f"{path}: Protobuf has no type for {kind.simpleString()}; cast it to string")
    return found
