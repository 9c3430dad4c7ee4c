"""JSON Schemas that refer to other documents, as one document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.formats.json_schema_references import bundle_references
from headrace.spark.formats.json_schema_types import JsonSchemaError, parse_json_schema

MONEY = {"definitions": {"code": {"type": "string"}}, "type": "object",
         "properties": {"currency": {"$ref": "#/definitions/code"}, "cents": {"type": "integer"}}}  # fmt: skip


def columns_of(schema: dict[str, Any], **documents: Any) -> str:
    texts = {name.replace("__", "/").replace("_", "."): json.dumps(each) for name, each in documents.items()}
    return parse_json_schema(bundle_references(json.dumps(schema), texts)).spark.simpleString()


def test_documents_refer_to_documents_and_into_them() -> None:
    item = {"type": "object", "properties": {"price": {"$ref": "money.json"}, "name": {"type": "string"}}}
    order = {
        "$id": "http://shop.example/schemas/order.json",
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "item.json"}},
            "currency": {"$ref": "money.json#/definitions/code"},
            "own": {"$ref": "#/definitions/flag"},
        },
        "definitions": {"flag": {"type": "boolean"}},
    }
    money = "struct<currency:string,cents:bigint>"
    assert columns_of(order, item_json=item, money_json=MONEY) == (
        f"struct<items:array<struct<price:{money},name:string>>,currency:string,own:boolean>"
    )


def test_names_may_be_addresses_that_references_are_relative_to() -> None:
    order = {"$id": "http://a/b/order.json", "type": "object", "properties": {"total": {"$ref": "money.json"}}}
    texts = {"http://a/b/money.json": json.dumps(MONEY)}
    found = parse_json_schema(bundle_references(json.dumps(order), texts))
    assert found.spark.simpleString() == "struct<total:struct<currency:string,cents:bigint>>"


@pytest.mark.parametrize("reference", ["other.json", "money.json#code", "#code", "money.json#/definitions/none"])
def test_what_is_not_there_is_refused(reference: str) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(JsonSchemaError, match=r"a refers to"):
        columns_of(schema, money_json=MONEY)


def test_documents_that_contain_each_other_are_refused() -> None:
    one, two = ({"type": "object", "properties": {"x": {"$ref": name}}} for name in ("two.json", "one.json"))
    with pytest.raises(JsonSchemaError, match="contains itself"):
        columns_of(one, one_json=one, two_json=two)


PARTS = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "boolean"}]),
    lambda parts: st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=3).map(
        lambda properties: {"type": "object", "properties": properties}
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None, database=None)
@given(st.dictionaries(st.sampled_from("abc"), PARTS, min_size=1), st.text("a~/.%é", min_size=1, max_size=4))
def test_columns_are_those_of_the_parts_in_place(parts: dict[str, Any], name: str) -> None:
    whole = {"type": "object", "properties": parts}
    referring = {"type": "object", "properties": {each: {"$ref": f"{name}#/properties/{each}"} for each in parts}}
    found = parse_json_schema(bundle_references(json.dumps(referring), {name: json.dumps(whole)}))
    assert found.spark == parse_json_schema(json.dumps(whole)).spark
