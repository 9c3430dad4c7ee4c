"""Classes of the public API: misuse is reported as a HeadraceError with code, cause, fix and the user's line.

`checked_api` wraps the public methods of a class. A call that Python itself would refuse, an argument of a wrong type
and an attribute that does not exist become errors that name the near one; a package that an extra installs and that is
missing becomes `extra-missing`. Calls that are right cost one frame and a check per argument (about 1 µs), so classes
are wrapped whose methods are called per batch, never per record.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, TypeVar, cast

from headrace.call_sites import call_site, is_user_code, shown
from headrace.errors import ArgumentError, ConfigError, HeadraceError, TopologyError, UnknownName
from headrace.extras import missing_extra
from headrace.suggestions import nearest
from headrace.type_checks import Check, checks_of

__all__ = ["checked_api", "checked_function", "unknown_attribute"]

# What other libraries call the same argument, where no spelling is near.
_SYNONYMS = {
    "brokers": "bootstrap_servers",
    "format": "value",
    "servers": "bootstrap_servers",
    "topic": "topics",
    "value_format": "value",
}

# Words in names of arguments whose values may be, or hold, a password.
_SECRET_WORDS = frozenset({"config", "credentials", "options", "password", "secret", "security", "token", "url"})
_PASSWORD_IN_URL = re.compile(r"://[^/\s]*@")

Kind = TypeVar("Kind", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def checked_api(
    *,
    forwards: Callable[..., Any] | None = None,
    internal: Collection[str] = (),
    unchecked: Collection[str] = (),
) -> Callable[[Kind], Kind]:
    """Decorate a public class.

    Args:
        forwards: The function whose keyword arguments the constructor's `**settings` become.
        internal: Methods of the class for callers within Headrace, left as they are.
        unchecked: Parameters, or `method.parameter`, that the methods check themselves: they have more to report.
    """

    def decorate(kind: Kind) -> Kind:
        for name, member in list(vars(kind).items()):
            if name in internal:
                continue
            if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")):
                shown_name = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
                taken = forwards if name == "__init__" else None
                setattr(kind, name, _Signature(member, shown_name, forwards=taken, unchecked=unchecked).checked())
        if not hasattr(kind, "__getattr__"):
            kind.__getattr__ = unknown_attribute  # type: ignore[attr-defined]
        return kind

    return decorate


def checked_function(*, extra: str | None = None) -> Callable[[Function], Function]:
    """Decorate a public function. `extra`: the extra that it needs as a whole."""

    def decorate(function: Function) -> Function:
        plain = cast("FunctionType", function)
        return cast("Function", _Signature(plain, plain.__name__, extra=extra).checked())

    return decorate


def unknown_attribute(owner: object, name: str) -> Any:
    """`__getattr__` of a public class. Raises AttributeError for private names, else UnknownName."""
    kind = type(owner)
    if name.startswith("_"):
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=owner)
    public = [each for each in dir(kind) if not each.startswith("_")]
    near = nearest(name, public)
    hint = f'; did you mean "{near}"?' if near else ""
    fix = f'write "{near}"' if near else f"use one of: {', '.join(public)}"
    where = call_site()
    facts = {"where": shown(where)} if is_user_code(where.rpartition(":")[0]) else {}
    raise UnknownName(
        "unknown-name", f'{kind.__name__} has no "{name}"{hint}', fix, name=name, nearest=near or "", **facts
    )


class _Signature:
    """The parameters of one public function, and what is wrong with a call."""

    def __init__(
        self,
        function: FunctionType,
        name: str,
        *,
        forwards: Callable[..., Any] | None = None,
        extra: str | None = None,
        unchecked: Collection[str] = (),
    ) -> None:
        self._function = function
        self._name = name
        self._forwards = forwards
        self._extra = extra
        self._unchecked = unchecked
        self._signature = inspect.signature(function)
        code = function.__code__
        self._positional = code.co_varnames[: code.co_argcount]
        self._checks: Mapping[str, Check] | None = None

    def checked(self) -> Callable[..., Any]:
        """The function behind its checks."""
        function = self._function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                self._check_types(args, kwargs)
                return function(*args, **kwargs)
            except (ConfigError, TopologyError) as error:
                _locate(error, 2)
                raise
            except ModuleNotFoundError as error:
                missing = missing_extra(error, self._name, extra=self._extra)
                if missing is None:
                    raise
                _locate(missing, 2)
                raise missing from None
            except TypeError as error:
                # Python refused the call itself: a mistake in the function's body has a frame of its own.
                if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                    raise
                refused = self._refused(args, kwargs, error)
                _locate(refused, 2)
                raise refused from None

        return call

    def _check_types(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        checks = self._checks
        if checks is None:
            checks = self._checks = self._all_checks()
        for name, value in zip(self._positional, args, strict=False):
            known = checks.get(name)
            if known is not None and not known.accepts(value):
                raise self._wrong_type(name, value, known)
        for name, value in kwargs.items():
            known = checks.get(name)
            if known is not None and not known.accepts(value):
                raise self._wrong_type(name, value, known)
        if len(args) > len(self._positional) and "*" in checks:
            known = checks["*"]
            for value in args[len(self._positional) :]:
                if not known.accepts(value):
                    raise self._wrong_type("an argument", value, known)
        if self._forwards is not None:
            self._check_forwarded(kwargs)

    def _all_checks(self) -> Mapping[str, Check]:
        found = checks_of(self._function)
        for parameter in self._signature.parameters.values():
            known = found.pop(parameter.name, None) if parameter.kind is parameter.VAR_POSITIONAL else None
            if known is not None:
                found["*"] = known
            if parameter.kind is parameter.VAR_KEYWORD:
                found.pop(parameter.name, None)
        if self._forwards is not None:
            target = inspect.unwrap(self._forwards)
            found = {**checks_of(cast("FunctionType", target)), **found}
        own = self._function.__name__
        return {
            name: check
            for name, check in found.items()
            if name not in self._unchecked and f"{own}.{name}" not in self._unchecked
        }

    def _check_forwarded(self, kwargs: dict[str, Any]) -> None:
        known = self._keywords()
        for name in kwargs:
            if name not in known:
                raise self._unknown_argument(name, known)

    def _keywords(self) -> list[str]:
        """Names that may be given, those that are forwarded included."""
        parameters = list(self._signature.parameters.values())
        if self._forwards is not None:
            parameters += list(inspect.signature(self._forwards).parameters.values())
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return list(dict.fromkeys(each.name for each in parameters if each.kind in kinds and each.name != "self"))

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> ArgumentError:
        """The error for a call that does not bind."""
        known = self._keywords()
        for name in kwargs:
            if name not in known:
                return self._unknown_argument(name, known)
        missing = self._missing(args, kwargs)
        if missing:
            message = f"{self._name} needs {' and '.join(missing)}"
            fix = f"call it as {self._usage()}"
        else:
            given = len(args) - (1 if self._positional[:1] == ("self",) else 0)
            taken = self._usage()
            message = f"{self._name} takes fewer arguments by position than the {given} that were given"
            fix = f"call it as {taken}; arguments behind * are given by name"
            if "multiple values" in str(error):
                message, fix = f"{self._name} got an argument twice, by position and by name", f"call it as {taken}"
        return ArgumentError("wrong-arguments", message, fix, function=self._name)

    def _missing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        taken = set(self._positional[: len(args)]) | set(kwargs)
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [
            each.name
            for each in self._signature.parameters.values()
            if each.default is each.empty and each.kind not in kinds and each.name not in taken
        ]

    def _usage(self) -> str:
        """The call without annotations: `seek(partition, offset)`."""
        parameters = [
            each.replace(annotation=each.empty) for each in self._signature.parameters.values() if each.name != "self"
        ]
        text = str(inspect.Signature(parameters))
        return f"{self._name.rpartition('.')[2]}{text}"

    def _unknown_argument(self, name: str, known: list[str]) -> ArgumentError:
        folded = name.replace(".", "_").lower()
        synonym = _SYNONYMS.get(folded, "")
        near = synonym if synonym in known else nearest(folded, known)
        hint = f'; did you mean "{near}"?' if near else ""
        fix = f"write {near}=" if near else f"give one of: {', '.join(known)}"
        if near is None and "config" in known:
            fix = (
                f'settings by Kafka\'s names go into config={{"{name.replace("_", ".")}": …}}; arguments: '
                + ", ".join(known)
            )
        message = f'{self._name} has no argument "{name}"{hint}'
        return ArgumentError(
            "unknown-argument", message, fix, function=self._name, argument=name, nearest=near or "", known=tuple(known)
        )

    def _wrong_type(self, name: str, value: object, check: Check) -> ArgumentError:
        given, wanted = type(value).__name__, check.described
        given_value = _shown_value(name, value)
        facts = {"function": self._name, "argument": name, "expected": wanted, "given": given}
        if isinstance(value, str) and check.choices:
            near = nearest(value.lower().replace("-", "_"), check.choices) or nearest(value, check.choices)
            hint = f"; did you mean {near!r}?" if near else ""
            message = f"{self._name}: {name} is {given_value or 'a value'}, none of {', '.join(check.choices)}{hint}"
            fix = f'write {name}="{near}"' if near else f"give one of: {', '.join(check.choices)}"
            return ArgumentError("bad-value", message, fix, **facts)
        message = f"{self._name}: {name} is {f'{given_value} ({given})' if given_value else given}, expected {wanted}"
        lists = isinstance(value, str) and any(kind in wanted for kind in ("Iterable[str]", "Sequence[str]"))
        fix = f"put it into a list: {name}=[{given_value or name}]" if lists else f"pass {wanted}: {self._usage()}"
        return ArgumentError("wrong-type", message, fix, **facts)


def _shown_value(name: str, value: object) -> str:
    """A value as a message quotes it, at most 60 characters. Empty for one that may hold a password.

    A message ends up in logs. Settings arrive as mappings, and a URL may carry a password before its host.
    """
    words = name.lower().split("_")
    if isinstance(value, Mapping) or not _SECRET_WORDS.isdisjoint(words):
        return ""
    text = repr(value)
    if _PASSWORD_IN_URL.search(text):
        return ""
    return text if len(text) <= 60 else f"{text[:57]}..."


def _locate(error: HeadraceError, depth: int) -> None:
    """Put the caller's line into an error without one, when the caller is the user's program."""
    frame = sys._getframe(depth)
    if is_user_code(frame.f_code.co_filename):
        error.locate(shown(f"{frame.f_code.co_filename}:{frame.f_lineno}"))
