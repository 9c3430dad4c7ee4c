"""The subject of a certificate as Java writes it (X500Principal.getName, RFC 2253), and the names rules make of it.

Kafka takes `CN=client,OU=app,O=us` for the name of the principal, and access rules are written with that text: order,
spelling and escapes have to be the same. Hence the subject is read from the certificate's own bytes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.errors import ConfigError

__all__ = ["MappingRule", "map_name", "parse_mapping_rules", "subject_name"]

# What RFC 2253 has a short name for; everything else is written as its number with the bytes of the value.
_SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# The string types of ASN.1 by tag: UTF8String, PrintableString, TeletexString, IA5String, UniversalString, BMPString.
_ENCODINGS = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}
_SEQUENCE, _SET, _VERSION = 0x30, 0x31, 0xA0
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\Z", re.DOTALL)
_SPLIT = re.compile(r"\s*(?:(DEFAULT)|(RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?))\s*(?:,|\Z)", re.DOTALL)


def subject_name(certificate: bytes) -> str:
    """Return the subject name of a DER certificate, the most specific part first."""
    # Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, signature }; the first element is the one that
    # names.
    to_be_signed = next(_elements(next(_elements(certificate, 0, len(certificate))).content))
    parts = [part for part in _elements(to_be_signed.content) if part.tag != _VERSION]
    # serial number, algorithm, issuer, validity, subject
    # RFC 2253 writes the last relative name first.
    names = [_relative_name(each.content) for each in _elements(parts[4].content) if each.tag == _SET]
    return ",".join(reversed(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Element:
    tag: int
    content: bytes
    whole: bytes


def _elements(data: bytes, start: int = 0, end: int | None = None) -> Iterator[_Element]:
    """DER, one level."""
    position, stop = start, len(data) if end is None else end
    while position < stop:
        tag, length, body = data[position], data[position + 1], position + 2
        # Long form: the low bits count the bytes of the length.
        if length & 0x80:
            count = length & 0x7F
            length, body = int.from_bytes(data[body : body + count], "big"), body + count
        yield _Element(tag=tag, content=data[body : body + length], whole=data[position : body + length])
        position = body + length


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(each.content) for each in _elements(content) if each.tag == _SEQUENCE)


def _attribute(content: bytes) -> str:
    kind, value = _elements(content)
    number = _object_number(kind.content)
    name, encoding = _SHORT_NAMES.get(number), _ENCODINGS.get(value.tag)
    # RFC 2253, section 2.4: a value without a form as text is `#` and the hexadecimal digits of its BER encoding.
    if name is None or encoding is None:
        return f"{name or number}=#{value.whole.hex()}"
    return f"{name}={_escaped(value.content.decode(encoding, 'replace'))}"


def _object_number(content: bytes) -> str:
    numbers, value = [], 0
    # Base 128, the high bit set on all but the last byte; the first number holds two.
    for byte in content:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    # X.690, section 8.19.4: the first two numbers share one, 40 x + y. Since x is at most 2, and y is below 40 where x
    # is 0 or 1, the sum can be taken apart again.
    first = min(numbers[0] // 40, 2)
    return ".".join(str(number) for number in (first, numbers[0] - 40 * first, *numbers[1:]))


def _escaped(text: str) -> str:
    escaped = re.sub(r'([,+"\\<>;=])', r"\\\1", text)
    # A leading # would read as hexadecimal, spaces at the ends would be trimmed.
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if len(text) > 1 and text.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return escaped


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRule:
    """`pattern` None: the name as it is."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: Callable[[str], str] = str

    def apply(self, name: str) -> str | None:
        """Return the mapped name; None where the rule does not fit."""
        if self.pattern is None:
            return name
        found = self.pattern.match(name)
        return None if found is None else self.case(found.expand(self.replacement))


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse `ssl.principal.mapping.rules`, in Kafka's form. Raises ConfigError `bad-value`."""
    rules: list[MappingRule] = []
    position = 0
    while position < len(text.rstrip()):
        found = _SPLIT.match(text, position)
        if found is None:
            raise _refusal(text)
        rules.append(MappingRule() if found[1] else _rule(found[2], text))
        position = found.end()
    return tuple(rules) or (MappingRule(),)


def map_name(rules: tuple[MappingRule, ...], name: str) -> str | None:
    """Apply the first rule that fits a name; None where none fits: Kafka refuses the connection."""
    return next((mapped for rule in rules if (mapped := rule.apply(name)) is not None), None)


def _rule(rule: str, text: str) -> MappingRule:
    found = _RULE.match(rule)
    if found is None:
        raise _refusal(text)
    pattern, replacement, case = found.groups()
    try:
        # Java's $1 is Python's \g<1>.
        expanded = re.sub(r"\$(\d+)", r"\\g<\1>", replacement.replace("\\", "\\\\"))
        # Kafka's rules have to fit the whole name.
        compiled = re.compile(f"(?:{pattern})\\Z")
        if compiled.groups < max((int(number) for number in re.findall(r"\$(\d+)", replacement)), default=0):
            raise _refusal(text)
        return MappingRule(pattern=compiled, replacement=expanded, case={"L": str.lower, "U": str.upper}.get(case, str))
    except re.error:
        raise _refusal(text) from None


def _refusal(text: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"ssl.principal.mapping.rules={text} is not understood.",
        "Write rules as Kafka does: RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
    )
