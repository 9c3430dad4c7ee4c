"""Errors: pickled with their notes, and the place at which they were raised."""

from __future__ import annotations

import pickle

from tests.public_api import assert_explained, text_of

from headrace.errors import ArgumentError, ConfigError, HeadraceError, MissingExtra, UnknownName


def test_errors_survive_pickling_with_their_notes():
    error = ArgumentError("wrong-type", "a message", "a fix", where="app.py:3", argument="x")
    error.add_note("a note of the user's")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is ArgumentError
    assert copied.__notes__ == error.__notes__
    assert (copied.code, copied.fix, copied.facts) == (error.code, error.fix, error.facts)
    assert text_of(copied).count("a fix") == 1
    for kind in (HeadraceError, ConfigError, UnknownName, MissingExtra):
        assert_explained(pickle.loads(pickle.dumps(kind("bad-value", "a message", "a fix", name="x", package="numpy"))))


def test_a_place_is_put_in_once():
    error = ConfigError("bad-value", "a message", "a fix")
    error.locate("app.py:3")
    error.locate("other.py:1")
    assert text_of(error).count("where") == 1
    assert "where  app.py:3" in text_of(error)
