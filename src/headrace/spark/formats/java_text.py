"""Numbers and strings as Java writes them: `Double.toString` (shortest digits, as from JDK 19 on), Jackson's text."""

from __future__ import annotations

import json
import math
import re

import numpy as np

_CONTROL = re.compile(r"\\u00([01][0-9a-f])")


def java_double(number: float) -> str:
    """ "1.0", "1.0E7", "9.99E-4", "NaN", "Infinity": plain from 0.001 up to ten million, else with an exponent."""
    if number != number:
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    # `Double.toString`: plain between 10^-3 and 10^7, else computerised scientific notation. Python's `repr` finds the
    # same shortest digits, with other bounds for the exponent.
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        text = repr(number)
        return _plain(text) if "e" in text else text
    mantissa, _, exponent = f"{number!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if fraction == "0":
        fraction = ""
    power = int(exponent or 0) + len(whole) - 1
    digits = whole + fraction
    stripped = digits.lstrip("0")
    power -= len(digits) - len(stripped)
    stripped = stripped.rstrip("0") or "0"
    return f"{sign}{stripped[0]}.{stripped[1:] or '0'}E{power}"


def java_float(number: float) -> str:
    """Format a 32-bit float like `Float.toString`, which needs fewer digits than the double of the same value."""
    if not math.isfinite(number) or number == 0:
        return java_double(number)
    # The shortest digits that identify the 32-bit value: those of its 64-bit widening would be longer (0.1f is
    # 0.10000000149011612).
    return java_double(float(np.format_float_scientific(np.float32(number), unique=True)))


def _plain(text: str) -> str:
    return f"{float(text):.17f}".rstrip("0")


def quoted(text: str) -> str:
    """A JSON string as Jackson writes it: control characters in upper-case hexadecimal."""
    return _CONTROL.sub(lambda match: "\\u00" + match.group(1).upper(), json.dumps(text, ensure_ascii=False))
