"""An S3 server (moto) on the loopback, a process that checks credentials and fails requests on demand."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from tests.harness.polling import wait_until
from tests.harness.ports import find_free_port

__all__ = ["BUCKET", "SECRET", "S3Server"]

BUCKET = "lake"
KEY = "AKIAHEADRACETEST0000"
SECRET = "s3cret/of+the-tests"
REGION = "us-east-1"
ACCOUNT = "123456789012"  # moto's
CONTROL = "/headrace-control"


class S3Server:
    """A server with the bucket `BUCKET`, which one user may read and write.

    Faults are given as (number of matching writes that go well before it, kind), for writes (PUT and POST) whose path
    contains a text:

    refused: answer 403, and do nothing.
    unknown: do the work and answer 500, so that the client cannot know.
    ignores: store an object in spite of `If-None-Match`, as servers do that do not know it.

    A kind with "always " before it holds until the next call of `fail`.
    """

    def __init__(self) -> None:
        self.port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def delta_options(self, *, secret: str = SECRET) -> dict[str, str]:
        """Options of delta-rs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def iceberg_options(self, *, secret: str = SECRET) -> dict[str, str]:
        """Properties of a catalog of pyiceberg."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": KEY,
            "s3.secret-access-key": secret,
            "s3.region": REGION,
        }

    def fail(self, faults: Iterable[tuple[int, str]], containing: str = "") -> None:
        """Fail later writes."""
        self._control({"faults": list(faults), "containing": containing})

    def writes(self) -> list[tuple[str, str, str]]:
        """Return (method, path, `If-None-Match`) of the writes since `fail` or the start."""
        return [tuple(one) for one in self._control({})]

    def _control(self, command: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}", json.dumps(command).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.harness.s3_server", str(self.port)]
        # The server itself needs no credentials, and must not find the machine's own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        wait_until(self._is_up, "the S3 server", timeout_s=60)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the S3 server ended"
        with contextlib.suppress(OSError):
            self._control({})
            return True
        return False


class Faults:
    """WSGI application that passes requests to moto, and fails some of them."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock, self._one_by_one = threading.Lock(), threading.Lock()
        self._faults: list[tuple[int, str]] = []
        self._containing = ""
        self._writes: list[tuple[str, str, str]] = []

    def __call__(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environment["PATH_INFO"], environment["REQUEST_METHOD"]
        if path == CONTROL:
            return self._control(environment, start)
        kind = self._next_fault(method, path, environment) if method in ("PUT", "POST") else ""
        if kind == "refused":
            return _answer(start, "403 Forbidden", "AccessDenied")
        if kind != "unknown":
            # moto looks first and stores then. S3 does both in one step.
            with self._one_by_one:
                if (
                    kind == "ignores" and "HTTP_IF_NONE_MATCH" in environment
                ):  # the condition itself is a part of the signature
                    _remove(path)
                return self._application(environment, start)  # type: ignore[no-any-return]
        for _ in self._application(environment, lambda *_: None):
            pass
        return _answer(start, "500 Internal Server Error", "InternalError")

    def _next_fault(self, method: str, path: str, environment: dict[str, Any]) -> str:
        with self._lock:
            self._writes.append((method, path, environment.get("HTTP_IF_NONE_MATCH", "")))
            if not self._faults or self._containing not in path:
                return ""
            left, kind = self._faults[0]
            if left > 0:
                self._faults[0] = (left - 1, kind)
                return ""
            # "always": until the next call of `fail`.
            if not kind.startswith("always "):
                self._faults.pop(0)
            return kind.removeprefix("always ")

    def _control(self, environment: dict[str, Any], start: Any) -> Iterator[bytes]:
        command = json.loads(environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0)))
        with self._lock:
            found = list(self._writes)
            if "faults" in command:
                self._faults, self._containing = [tuple(one) for one in command["faults"]], command["containing"]
                self._writes.clear()
        start("200 OK", [("Content-Type", "application/json")])
        return iter([json.dumps(found).encode()])


def _remove(path: str) -> None:
    from moto.backends import get_backend

    _, bucket, key = path.split("/", 2)
    get_backend("s3")[ACCOUNT]["aws"].delete_object(bucket, key)


def _answer(start: Any, status: str, code: str) -> list[bytes]:
    start(status, [("Content-Type", "application/xml")])
    return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()]


def serve(port: int) -> None:
    """Serve until the process ends. The user and the bucket exist before the first request."""
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    users = get_backend("iam")[ACCOUNT]["aws"]
    users.create_user(REGION, "etl")
    key = users.create_access_key(user_name="etl")
    key.access_key_id, key.secret_access_key = KEY, SECRET
    statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    users.put_user_policy("etl", "all", json.dumps({"Version": "2012-10-17", "Statement": statement}))
    get_backend("s3")[ACCOUNT]["aws"].create_bucket(BUCKET, REGION)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    # Keep-alive, as S3 has it.
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    application = Faults(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", port, application, threaded=True).serve_forever()


if __name__ == "__main__":
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
    serve(int(sys.argv[1]))
