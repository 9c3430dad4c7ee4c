"""Errors as a user sees them in a traceback."""

from __future__ import annotations

import traceback

from headrace.errors import HeadraceError


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def assert_explained(error: HeadraceError) -> None:
    text = text_of(error)
    assert f"code   {error.code}" in text
    assert error.fix
    assert f"fix    {error.fix}" in text
    assert text.count(f"{type(error).__name__}: {error.message}\n") == 1
