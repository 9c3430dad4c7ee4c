"""`APP` on a command line: `flights.py`, `flights.py:app`, `package.module` or `package.module:app`.

Loading runs the user's file, as Python would, up to its `if __name__ == "__main__"`. Its functions travel to Spark's
workers by value, and its directory is on their path, so nothing needs installing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.terminal import echo_err
from headrace.errors import ConfigError, HeadraceError, UserCodeError
from headrace.suggestions import nearest
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from headrace.spark.streams_app import StreamsApp

__all__ = [
    "announce_spark",
    "check_application_path",
    "configure",
    "configure_by_file",
    "load_application",
    "spark_quietly",
]


def check_application_path(application: str) -> None:
    """Check APP. Raises ConfigError `app-missing` when APP names a file that is not there; starts no Spark."""
    target, _ = _split(application)
    if _is_file(target) and not Path(target).is_file():
        near = nearest(Path(target).name, [page.name for page in Path(target).parent.glob("*.py")])
        fix = (
            f"did you mean {Path(target).parent / near}?"
            if near
            else "APP is a file, flights.py, or a module, package.module:app"
        )
        raise ConfigError("app-missing", f"there is no file {target}", fix)


def announce_spark(application: str, *, as_json: bool) -> None:
    """Print on stderr that Spark starts, which takes seconds. With JSON, stderr stays free for an error's document.

    Raises ConfigError `app-missing` before that when APP names a file that is not there.
    """
    check_application_path(application)
    if not as_json:
        echo_err(f"Starting Spark for {application} …")


def load_application(application: str) -> StreamsApp:
    """The StreamsApp that APP names. Raises ConfigError `app-missing`, UserCodeError, and what the app raises."""
    check_application_path(application)
    target, attribute = _split(application)
    try:
        module = _load_file(Path(target)) if _is_file(target) else _load_module(target)
    except HeadraceError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # These are ours to report, as a missing extra with the pip command; a module that the user's program lacks is
        # an error of that program, with its line.
        if missing in ("pyspark", "pyarrow", "numba", "lmdb", "pandas"):
            raise  # told as a missing extra
        raise _unloadable(target, error) from error
    return _find(module, target, attribute)


def configure(app: StreamsApp, *, bootstrap_servers: str | None, settings: dict[str, str]) -> None:
    """Apply the options of the command line, which override those of the application's file."""
    if bootstrap_servers is not None:
        app.bootstrap_servers = bootstrap_servers
    # The address is an attribute of its own and not a member of `app.config`. It may come from three places; the option
    # wins over the file, the file over the program.
    given = dict(settings)
    if "bootstrap.servers" in given:
        named = given.pop("bootstrap.servers")
        app.bootstrap_servers = app.bootstrap_servers if bootstrap_servers is not None else named
    if given:
        from headrace.spark.settings import checked_config, connection_settings

        checked = checked_config(given)
        app.config.update({name: checked[name] for name in given if name in checked})
        # Security is resolved as a whole: the file may set the protocol and leave the password to the program, and only
        # both together can be checked.
        _, app.security = connection_settings(app.bootstrap_servers, {**app.security.to_settings(), **given})


def configure_by_file(app: StreamsApp, *, bootstrap_servers: str | None, config_file: Path | None) -> None:
    """Configure the application with the file that `--config` names. Raises ConfigError."""
    from headrace.client.client_settings import read_properties

    settings = read_properties(config_file) if config_file is not None else {}
    configure(app, bootstrap_servers=bootstrap_servers, settings=settings)


def _split(application: str) -> tuple[str, str | None]:
    # From the right, and only if the last part can be an attribute: a path such as `/data/a:b/flights.py` has a colon
    # too.
    target, colon, attribute = application.rpartition(":")
    if not colon or os.sep in attribute or attribute.endswith(".py"):
        return application, None
    return target, attribute


def _is_file(target: str) -> bool:
    return target.endswith(".py") or os.sep in target


def _load_file(path: Path) -> ModuleType:
    directory = str(path.resolve().parent)
    # 1. The file's directory first, as `python flights.py` has it: the program may import its neighbours, at load time
    #    or later inside a function.
    _on_every_path(directory)
    # 2. The module is called by its file, so that tracebacks and pickles name it as the user does, except where that
    #    name is taken: an application in `json.py` must not replace the standard library's module.
    name = path.stem if path.stem not in sys.modules else f"headrace_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(
            "app-missing", f"{path} is no Python file", "APP is a file, flights.py, or a module, package.module:app"
        )
    module = importlib.util.module_from_spec(spec)
    # 3. Registered before it is executed, as the import system does: dataclasses and `typing.get_type_hints` look their
    #    module up in `sys.modules` while the file runs.
    sys.modules[name] = module
    # 4. By value, also before execution: by reference each of Spark's Python workers would import the file, hence build
    #    the application again, and under a name from step 2 it would not find the module at all.
    _by_value(module)
    spec.loader.exec_module(module)
    return module


def _load_module(target: str) -> ModuleType:
    _on_every_path(str(Path.cwd()))
    # The top-level package only: `find_spec("a.b")` would import `a`, and an error inside it is an error of the user's
    # program, which `load_application` reports with its line.
    if importlib.util.find_spec(target.partition(".")[0]) is None:
        raise ConfigError(
            "app-missing", f"there is no module {target}", "APP is a file, flights.py, or a module, package.module:app"
        )
    return importlib.import_module(target)


def _on_every_path(directory: str) -> None:
    """Add a directory to the path of this process, and of Spark's workers, which inherit it."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    inherited = os.environ.get("PYTHONPATH", "")
    if directory not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = directory + (os.pathsep + inherited if inherited else "")


def _by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _find(module: ModuleType, target: str, attribute: str | None) -> StreamsApp:
    from headrace.spark.streams_app import StreamsApp

    apps = {name: value for name, value in vars(module).items() if isinstance(value, StreamsApp)}
    if attribute is not None:
        found = apps.get(attribute)
        if found is None:
            known = f"there: {', '.join(sorted(apps))}" if apps else "it defines none"
            raise ConfigError("app-missing", f"{target} has no StreamsApp called {attribute}", known)
        return found
    # `app = other = StreamsApp(...)` is one application under two names; it is called by the first one. Names are
    # looked at in reverse, so that the first assignment is what stays.
    distinct = {id(app): name for name, app in reversed(apps.items())}
    if len(distinct) != 1:
        what = "no StreamsApp" if not distinct else f"several StreamsApps: {', '.join(sorted(distinct.values()))}"
        fix = (
            'app = StreamsApp("name") at the top level of the file'
            if not distinct
            else f"name one: {target}:{min(distinct.values())}"
        )
        raise ConfigError("app-missing", f"{target} defines {what}", fix)
    return apps[next(iter(distinct.values()))]


def _unloadable(target: str, error: Exception) -> UserCodeError:
    # The last frame in the user's own files: below it are frames of Spark or of this package, above it those of the
    # import system, and none of them is a place that the user can change.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}  {frames[-1].line or ''}".rstrip() if frames else target
    # A file with a syntax error has no frame of its own; the exception carries the place.
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}  {(error.text or '').strip()}"
    text = " ".join(str(error).split())
    return UserCodeError(
        "user-code",
        f"{target} does not load: {type(error).__name__}: {text}",
        "fix it there; `python FILE` shows the same",
        where=where,
    )


def _is_user_code(filename: str) -> bool:
    return (
        "site-packages" not in filename
        and not filename.startswith("<")
        and "importlib" not in filename
        and f"{os.sep}headrace{os.sep}" not in filename
    )


@contextlib.contextmanager
def spark_quietly() -> Iterator[None]:
    """File descriptor 2 goes to a temporary file inside the block; sys.stderr (Python's own echo_err) does not."""
    if os.environ.get("HEADRACE_DEBUG"):
        yield
        return
    # 1. The JVM inherits descriptor 2 when it is started and writes to it without Python's knowledge, so replacing
    #    `sys.stderr` would not silence it. The descriptor itself is redirected, into a file instead of /dev/null: if
    #    the command fails unexpectedly, Spark's output is the only evidence.
    directory = OwnedDirectory("headrace-cli-")
    path = directory.path / "spark.log"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    terminal = os.dup(2)
    # 2. Our own messages keep the terminal through a duplicate that is taken before the redirection.
    ours = os.fdopen(os.dup(2), "w", buffering=1)
    python_stderr = sys.stderr
    keep = False
    try:
        sys.stderr.flush()
        os.dup2(handle, 2)
        sys.stderr = ours
        yield
    # 3. These explain themselves: the file is removed. Any other exception keeps it and prints its path.
    except (HeadraceError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        keep = True
        raise
    finally:
        # 4. Descriptor 2 points to the terminal again before `echo_err` below prints the path. The duplicate is closed
        #    only when `sys.stderr` no longer refers to it.
        sys.stderr = python_stderr
        os.dup2(terminal, 2)
        ours.close()
        os.close(terminal)
        os.close(handle)
        if keep:
            directory.keep()
            echo_err(f"what Spark wrote: {path}")
        directory.remove()
