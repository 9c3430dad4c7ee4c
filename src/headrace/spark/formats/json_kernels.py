"""One compiled pass over JSON records: every byte is checked, every field of the schema too, nothing else is made.

`scan_objects` reads what nearly all records are: one object of plain values, strings without escapes, numbers that fit.
It writes numbers, and where strings lie; whatever it does not read with certainty it calls *odd*, and slower code
decides (`json_decoding`). So it never refuses a record, and what it accepts is RFC 8259 to the last byte. A field that
no query needs is checked all the same: which records are bad must not depend on what a query happens to use.

Bytes come from strangers and numba checks no bounds: each read is behind a comparison with the record's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from headrace.array_types import (
        BoolArray,
        Boolean,
        ByteArray,
        FloatArray,
        Int32Array,
        Int64Array,
        Integer,
        IntegerArray,
    )


__all__ = [
    "ABSENT",
    "BOOLEAN",
    "DATE",
    "DOUBLE",
    "HARD",
    "INSTANT",
    "INTEGER",
    "NUMBER",
    "PRESENT",
    "TEXT",
    "scan_objects",
]

TEXT: Final = 0
INTEGER: Final = 1
DOUBLE: Final = 2
BOOLEAN: Final = 3
DATE: Final = 4
INSTANT: Final = 5
NUMBER: Final = 6  # the text of a number

ABSENT: Final = 0  # no such field, or null
PRESENT: Final = 1
HARD: Final = 2  # a number whose nearest double is not found in one step: its text is remembered

_UNKNOWN = -1
# Digits up to 2^53 and powers of ten up to 10^22 are doubles without rounding, so one multiplication or division rounds
# once and gives the nearest double (Clinger 1990, the fast path of most JSON parsers).
_POWERS = np.array([10.0**exponent for exponent in range(23)])  # those that a double holds exactly
_EXACT = 1 << 53
_MOST_DIGITS = 19  # more than an int64 holds come out negative, which marks them


@njit(cache=True, nogil=True)
def _is_digit(byte: np.uint8) -> Boolean:
    return 48 <= byte <= 57


@njit(cache=True, nogil=True)
def _behind_space(data: ByteArray, at: Integer, end: Integer) -> Integer:
    while at < end and (data[at] == 32 or data[at] == 9 or data[at] == 10 or data[at] == 13):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _behind_plain_text(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Boolean]:
    """Find the end of a string without escapes: (position of the closing quote or -1, whether all bytes are ASCII)."""
    # The bytes are or-ed together instead of tested one by one: the highest bit of the result is set if any byte is
    # above 127.
    seen = np.uint8(0)
    while at < end:
        byte = data[at]
        if byte == 34:
            return at, seen < 128
        if byte == 92 or byte < 32:
            return -1, False
        seen |= byte
        at += 1
    return -1, False


@njit(cache=True, nogil=True)
def _behind_text(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Boolean]:
    """Find the end of a string that may contain escapes; see `_behind_plain_text`."""
    seen = np.uint8(0)
    while at < end:
        byte = data[at]
        if byte == 34:
            return at, seen < 128
        if byte < 32:
            return -1, False
        if byte == 92:
            at += 1
            if at >= end:
                return -1, False
            byte = data[at]
            # `\u` and four hexadecimal digits. Surrogates are not paired here: the text is of a field that no query
            # knows, and JSON's grammar allows a lone one.
            if byte == 117:  # u and four digits of base 16
                if at + 4 >= end:
                    return -1, False
                for digit in range(at + 1, at + 5):
                    found = data[digit]
                    if not (_is_digit(found) or 65 <= found <= 70 or 97 <= found <= 102):
                        return -1, False
                at += 4
            elif not (
                byte == 34 or byte == 92 or byte == 47 or byte == 98 or byte == 102 or byte == 110 or byte == 114
                or byte == 116
            ):  # fmt: skip
                return -1, False
        seen |= byte
        at += 1
    return -1, False


@njit(cache=True, nogil=True)
def _word(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Read a literal: (1 true, 0 false, 2 null, -1 none of them; the position after it)."""
    # The second byte differs between the three literals (r, u, a), so it is compared first: one comparison rejects most
    # of them.
    if at + 4 <= end and data[at + 1] == 114 and data[at] == 116 and data[at + 2] == 117 and data[at + 3] == 101:
        return 1, at + 4
    if at + 4 <= end and data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        return 2, at + 4
    if at + 5 <= end and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108 and data[at + 3] == 115:
        return (0, at + 5) if data[at + 4] == 101 else (-1, at)
    return -1, at


@njit(cache=True, nogil=True)
def _number(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer, Integer, Integer]:  # noqa: C901 a grammar in one pass
    """A number by JSON's grammar: (where it ends or -1, its digits without point or sign, power of ten, form).

    Form: 0 an integer, 1 with a point or an exponent, 2 more digits than fit into the result.
    """
    # 1. Sign and integer digits. Digits beyond the 19th are counted but not added up, since they would overflow.
    if at < end and data[at] == 45:
        at += 1
    first = at
    digits = np.int64(0)
    count = 0
    while at < end and _is_digit(data[at]):
        if count < _MOST_DIGITS:
            digits = digits * 10 + np.int64(data[at] - 48)
        count += 1
        at += 1
    # RFC 8259 requires a digit, and no zero before other digits.
    if at == first or (data[first] == 48 and at > first + 1):
        return -1, 0, 0, 0
    form, power = 0, np.int64(0)
    # 2. Fraction. Its digits continue the same integer, and each lowers the power of ten by one.
    if at < end and data[at] == 46:
        form = 1
        at += 1
        fraction = at
        while at < end and _is_digit(data[at]):
            if count < _MOST_DIGITS:
                digits = digits * 10 + np.int64(data[at] - 48)
                power -= 1
            count += 1
            at += 1
        if at == fraction:
            return -1, 0, 0, 0
    # 3. Exponent. It is capped, because a record may hold any number of exponent digits: beyond 10,000 the value is
    #    infinite or zero anyway, and the caller leaves it to the slower reader.
    if at < end and (data[at] == 101 or data[at] == 69):
        form = 1
        at += 1
        negative = at < end and data[at] == 45
        if at < end and (data[at] == 45 or data[at] == 43):
            at += 1
        start, exponent = at, np.int64(0)
        while at < end and _is_digit(data[at]):
            if exponent < 10_000:
                exponent = exponent * 10 + np.int64(data[at] - 48)
            at += 1
        if at == start:
            return -1, 0, 0, 0
        power += -exponent if negative else exponent
    # 4. Nineteen digits can exceed int64; the wrapped result is negative, which is how it is noticed.
    return at, digits, power, 2 if count > _MOST_DIGITS or digits < 0 else form


@njit(cache=True, nogil=True)
def _two(data: ByteArray, at: Integer) -> int:
    """Return the number of two digits; for other bytes a number that makes every sum it is part of negative."""
    # The callers add at most a few hundred to the result, so a sum with this number stays negative and one range check
    # covers all digits of a date.
    if not (_is_digit(data[at]) and _is_digit(data[at + 1])):
        return -1_000_000
    return int(data[at] - 48) * 10 + int(data[at + 1] - 48)


@njit(cache=True, nogil=True)
def _day(data: ByteArray, at: Integer) -> int:
    """Return days since 1970 for `2013-01-31` at this position, or the smallest integer if it is not a date."""
    nothing = np.iinfo(np.int64).min
    if data[at + 4] != 45 or data[at + 7] != 45:
        return nothing
    year = _two(data, at) * 100 + _two(data, at + 2)
    month, day = _two(data, at + 5), _two(data, at + 8)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return nothing
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    longest = 31 - (month == 4 or month == 6 or month == 9 or month == 11)
    if month == 2:
        longest = 29 if leap else 28
    if day > longest:
        return nothing
    # Years that begin in March, eras of 400 of them: the well-known way to count days.
    # See Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms" (days_from_civil).
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@njit(cache=True, nogil=True)
def _instant(data: ByteArray, at: Integer, size: Integer, utc: bool) -> int:
    """Return microseconds since 1970 for `2013-01-31T05:06:07.123456Z`, or the smallest integer.

    The Z may be missing if the session's zone is UTC.
    """
    nothing = np.iinfo(np.int64).min
    if size < 19 or (data[at + 10] != 84 and data[at + 10] != 32) or data[at + 13] != 58 or data[at + 16] != 58:
        return nothing
    day = _day(data, at)
    hour, minute, second = _two(data, at + 11), _two(data, at + 14), _two(data, at + 17)
    if day == nothing or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return nothing
    end = at + size
    zoned = data[end - 1] == 90
    if not zoned and not utc:
        return nothing
    if zoned:
        end -= 1
    micros, digits = 0, 0
    place = at + 19
    if place < end:
        if data[place] != 46 or end - place < 2 or end - place > 7:
            return nothing
        for digit in range(place + 1, end):
            if not _is_digit(data[digit]):
                return nothing
            micros = micros * 10 + int(data[digit] - 48)
            digits += 1
        # `.5` means 500,000 µs: the fraction is scaled to six digits.
        for _ in range(6 - digits):
            micros *= 10
    return (day * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000 + micros


@njit(cache=True, nogil=True)
def _is_named(
    data: ByteArray, at: Integer, size: Integer, names: ByteArray, name_offsets: IntegerArray, field: Integer
) -> bool:
    start = name_offsets[field]
    if name_offsets[field + 1] - start != size:
        return False
    for index in range(size):  # noqa: SIM110 - compiled
        if data[at + index] != names[start + index]:
            return False
    return True


@njit(cache=True, nogil=True)
def scan_objects(  # noqa: C901 one pass over bytes; every check must stand where the byte is read
    data: ByteArray,
    offsets: IntegerArray,
    names: ByteArray,
    name_offsets: IntegerArray,
    kinds: IntegerArray,
    limits: Int64Array,
    utc: bool,
    found: ByteArray,
    numbers: Int64Array,
    doubles: FloatArray,
    text_at: IntegerArray,
    text_size: Int32Array,
    odd: BoolArray,
    foreign: BoolArray,
) -> None:
    """Read the records `data[offsets[row]:offsets[row + 1]]`.

    `kinds`, `limits` per field (an integer is within ±limit, the negative one included). Written per field and row:
    `found` (ABSENT, PRESENT, HARD), `numbers` (integers, booleans, days, microseconds), `doubles`, `text_at` and
    `text_size`. Per row: `odd`, and `foreign` where bytes above 127 were seen, which are not checked here.
    """
    at: Integer
    micros: Integer
    fields = kinds.shape[0]
    seen = np.full(fields, -1, np.int64)  # the row in which a field was met last: names come once
    nothing = np.iinfo(np.int64).min
    # 1. A row is odd until it is read to its last byte. Every `break` below leaves it odd, so a check that fails needs
    #    no code of its own, and the slower reader decides.
    for row in range(offsets.shape[0] - 1):
        odd[row] = True
        foreign[row] = False
        for field in range(fields):
            found[field, row] = ABSENT
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if at >= end or data[at] != 123:
            continue
        at = _behind_space(data, at + 1, end)
        # 2. Producers write fields in one order. The field after the last one found is tried first, so that a name is
        #    compared once and not with every field.
        guess = 0
        closed = at < end and data[at] == 125
        while not closed:
            if at >= end or data[at] != 34:
                break
            name_at = at + 1
            # 3. A name with an escape could equal a field's name after decoding, and one with bytes above 127 would
            #    have to be checked as UTF-8: both rows are odd.
            name_end, ascii_name = _behind_plain_text(data, name_at, end)
            if name_end < 0 or not ascii_name:
                break
            at = _behind_space(data, name_end + 1, end)
            if at >= end or data[at] != 58:
                break
            at = _behind_space(data, at + 1, end)
            if at >= end:
                break
            size = name_end - name_at
            field = _UNKNOWN
            for step in range(fields):
                candidate = guess + step
                if candidate >= fields:
                    candidate -= fields
                if _is_named(data, name_at, size, names, name_offsets, candidate):
                    field = candidate
                    break
            # 4. A name twice: parsers differ in which value counts, so the slower reader decides. `seen` holds row
            #    numbers instead of flags, because clearing flags would cost a pass over all fields per row.
            if field != _UNKNOWN:
                if seen[field] == row:
                    break
                seen[field] = row
                guess = field + 1 if field + 1 < fields else 0
            byte = data[at]
            if byte == 34:
                start = at + 1
                # 5. Strings. Escapes are allowed where no value is made. In a field of the schema they would have to be
                #    decoded into new bytes, while this pass only remembers where a string lies.
                if field == _UNKNOWN:
                    stop, is_ascii = _behind_text(data, start, end)
                else:
                    stop, is_ascii = _behind_plain_text(data, start, end)
                if stop < 0:
                    break
                if not is_ascii:
                    foreign[row] = True
                if field != _UNKNOWN:
                    kind = kinds[field]
                    if kind == TEXT:
                        text_at[field, row] = start
                        text_size[field, row] = stop - start
                    elif kind == DATE and stop - start == 10:
                        day = _day(data, start)
                        if day == nothing:
                            break
                        numbers[field, row] = day
                    elif kind == INSTANT:
                        micros = _instant(data, start, stop - start, utc)
                        if micros == nothing:
                            break
                        numbers[field, row] = micros
                    else:
                        break
                    found[field, row] = PRESENT
                at = stop + 1
            # 6. Numbers, checked by the grammar whether or not the field is known.
            elif byte == 45 or _is_digit(byte):
                stop, digits, power, form = _number(data, at, end)
                if stop < 0:
                    break
                if field != _UNKNOWN:
                    kind = kinds[field]
                    negative = byte == 45
                    if kind == INTEGER:
                        # A two's complement range has one negative value more. `limits` is 2^31 for an int, so that
                        # value is accepted only with a sign; for a long the limit is 2^63 - 1, and the least long is
                        # left to the slower reader.
                        if form != 0 or digits > limits[field] or (digits == limits[field] and not negative):
                            break
                        numbers[field, row] = -digits if negative else digits
                        found[field, row] = PRESENT
                    elif kind == DOUBLE:
                        # Zero apart, because -0.0 has to keep its sign and 0e999 must not reach the table of powers.
                        if digits == 0 and form != 2:
                            doubles[field, row] = -0.0 if negative else 0.0
                            found[field, row] = PRESENT
                        elif form != 2 and digits <= _EXACT and -22 <= power <= 22:
                            value = np.float64(digits)
                            value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
                            doubles[field, row] = -value if negative else value
                            found[field, row] = PRESENT
                        # Not exact in one step. The text is kept, and Arrow's correctly rounding parser reads all of
                        # these at once (`json_columns._doubles`).
                        elif -250 < power < 250 and stop - at < 40:
                            text_at[field, row] = at
                            text_size[field, row] = stop - at
                            found[field, row] = HARD
                        else:
                            break
                    elif kind == NUMBER:
                        text_at[field, row] = at
                        text_size[field, row] = stop - at
                        found[field, row] = PRESENT
                    else:
                        break
                at = stop
            else:
                word, at = _word(data, at, end)
                if word < 0:
                    break
                if field != _UNKNOWN and word != 2:
                    if kinds[field] != BOOLEAN:
                        break
                    numbers[field, row] = word
                    found[field, row] = PRESENT
            at = _behind_space(data, at, end)
            if at >= end:
                break
            if data[at] == 44:
                at = _behind_space(data, at + 1, end)
            elif data[at] == 125:
                closed = True
            else:
                break
        # 7. Nothing but white space may follow the closing brace.
        if closed and _behind_space(data, at + 1, end) == end:
            odd[row] = False
