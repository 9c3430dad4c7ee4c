"""Values of settings: what is taken, and what is refused in Kafka's words."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.settings import Kind, Setting, Value, list_of, parse_value, render_value, unknown_setting


def setting(kind: Kind, **given: object) -> Setting:
    return Setting(name="x", kind=kind, default=None, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "given", "value"),
    [
        (setting("boolean"), " TRUE ", True),
        (setting("boolean"), False, False),
        (setting("int"), " 7 ", 7),
        (setting("int"), 7.0, 7),
        (setting("long"), str(2**63 - 1), 2**63 - 1),
        (setting("double"), "0.5", 0.5),
        (setting("list"), " a , b", "a,b"),
        (setting("list"), ["a", "b "], "a,b"),
        (setting("list"), "", ""),
        (setting("string", choices=("lz4", "none")), "lz4", "lz4"),
        (setting("string", choices=("delete",), any_case=True), "DELETE", "DELETE"),
        (setting("int", minimum=0, maximum=3), "3", 3),
        (setting("string", pattern=("[a-z]+", "no letters")), "abc", "abc"),
    ],
)
def test_accepted_values(wanted: Setting, given: object, value: Value) -> None:
    found = parse_value(wanted, given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("wanted", "given", "message"),
    [
        (setting("boolean"), "yes", "Expected value to be either true or false"),
        (setting("int"), "7.5", "Not a number of type INT"),
        (setting("int"), 2**31, "Not a number of type INT"),
        (setting("short"), -(2**15) - 1, "Not a number of type SHORT"),
        (setting("int"), "", "Not a number of type INT"),
        (setting("int", minimum=1), "0", "Value must be at least 1"),
        (setting("double", maximum=1), "1.5", "Value must be no more than 1"),
        (setting("list", may_be_empty=False), " ", "Configuration 'x' must not be empty."),
        (setting("list", may_be_empty=False, choices=("a",)), "", "Valid values include: [a]"),
        (setting("list"), "a,,b", "Configuration 'x' values must not be empty."),
        (setting("list", choices=("a", "b")), "a,c", "String must be one of: a, b"),
        (setting("string", choices=("lz4",)), "LZ4", "String must be one of: lz4"),
        (setting("string", choices=("a",), any_case=True), "b", "String must be one of (case insensitive): a"),
        (setting("string", pattern=("[a-z]+", "{value} has other letters")), "a1", "a1 has other letters"),
    ],
)
def test_refused_values(wanted: Setting, given: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_value(wanted, given)
    assert refused.value.code == "bad-value"
    assert message in refused.value.message


def test_the_fix_names_type_and_bounds() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_value(setting("int", minimum=1, maximum=9), "10")
    assert refused.value.fix == "Set `x` to a value that is of type int, at least 1, at most 9."


@pytest.mark.parametrize(("value", "text"), [(None, None), (True, "true"), (False, "false"), (7, "7"), ("a", "a")])
def test_values_are_rendered_as_kafkas_tools_print_them(value: Value | None, text: str | None) -> None:
    assert render_value(value) == text


@pytest.mark.parametrize(("text", "parts"), [("", []), ("  ", []), ("a", ["a"]), ("a, b", ["a", "b"]), (",", ["", ""])])
def test_parts_of_a_list(text: str, parts: list[str]) -> None:
    assert list_of(text) == parts


def test_an_unknown_setting_names_the_one_that_was_meant() -> None:
    error = unknown_setting("log.retention.mss", ["log.retention.ms"])
    assert error.code == "unknown-setting"
    assert error.fix == "Did you mean `log.retention.ms`?"
    assert "docs/reference/settings.md" in unknown_setting("zzz", ["log.retention.ms"]).fix
