"""S3 as the store of a Delta table: which options are safe, what its errors mean, and whether it keeps every commit.

delta-rs commits by one request that creates the next entry of the log unless it exists (`If-None-Match: *`). S3 has
done so since November 2024, as do MinIO, Ceph and Cloudflare R2. A server that does not know the condition stores the
second of two entries over the first one, and answers both with success: rows of other writers would be gone without an
error. `check_conditional_writes` finds such a server.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from headrace.spark.sinks.delta_log import delta_errors

__all__ = [
    "SCHEMES",
    "StoreError",
    "StoreRefusal",
    "check_conditional_writes",
    "check_options",
    "check_url",
    "complete_options",
    "explain_store_error",
    "hide_secrets",
    "store_errors",
]

SCHEMES = ("s3", "s3a")
RACERS = 4
ROUNDS = 2
# delta-rs would try an address where no server listens for three minutes.
PATIENCE = {"connect_timeout": "10s", "max_retries": "4", "retry_timeout": "60s"}
_CODE = re.compile(r"<Code>(\w+)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_STATUS = re.compile(r"\b(4\d\d|5\d\d) [A-Z][A-Za-z ]+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SECRET = re.compile(r"secret|token|password|credential|access.?key|customer.?key", re.IGNORECASE)
LEAST_SECRET = 4  # shorter values would be cut out of ordinary words
LOGIN_CODES = frozenset(
    {"SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "ExpiredToken", "InvalidClientTokenId"}
)


class StoreRefusal(ValueError):
    """A store, or options of a store, that would lose rows. The message is followed by `fix`."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


class StoreError(OSError):
    """A request that failed. The message is followed by `fix`."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def check_url(url: str) -> str:
    """Return the URL without a slash at the end. Raises StoreRefusal if it is no place in S3."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise StoreRefusal(
            f"tables in {parts.scheme}:// are not supported", "s3://bucket/path, or a directory that all instances see"
        )
    if "@" in parts.netloc:
        raise StoreRefusal("a URL is a name, which logs show; it cannot have credentials", "storage_options=")
    if not parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
        raise StoreRefusal(f"{url!r} names no directory of a bucket", "s3://bucket/path")
    return f"{parts.scheme}://{parts.netloc}/{parts.path.strip('/')}"


def check_options(options: Mapping[str, str]) -> None:
    """Refuse options, given or in the environment, under which two writers could replace each other's commits.

    Raises:
        StoreRefusal: with the option's name, never its value.
    """
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise StoreRefusal("storage_options= takes texts", '{"AWS_REGION": "eu-central-1"}')
    for name, value in {**os.environ, **options}.items():
        key = name.upper().removeprefix("AWS_")
        if key in ("S3_ALLOW_UNSAFE_RENAME", "ALLOW_UNSAFE_RENAME") and value.lower() not in ("", "false", "0"):
            raise StoreRefusal(f"{name} allows commits that replace each other", f"remove {name}")
        # delta-rs 1.x logs an error and goes on without the lock.
        if key == "S3_LOCKING_PROVIDER" and value:
            raise StoreRefusal(
                f"{name}: delta-rs has no lock in DynamoDB any more, so writers that use it would not wait",
                f"remove {name}, and let all writers of the table commit by conditional writes",
            )
        if key == "CONDITIONAL_PUT" and value.lower() != "etag":
            raise StoreRefusal(f"{name} turns off the condition on which commits rest", f"remove {name}")


def complete_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with limits of time for those that the user does not set."""
    given = {name.lower() for name in options}
    return {**{name: value for name, value in PATIENCE.items() if name not in given}, **options}


def check_conditional_writes(url: str, options: Mapping[str, str]) -> None:
    """Refuse a store that confirms two commits of one version. A few concurrent commits to a table of its own show it.

    The table lies below `_headrace/` and is removed.

    Raises:
        StoreRefusal: if a confirmed commit is gone.
        StoreError: if the store refuses requests, or cannot be reached.
    """
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.fs import DeltaStorageHandler

    for _ in range(ROUNDS):
        place = f"_headrace/check-{uuid.uuid4().hex}"
        with store_errors(url, options):
            DeltaTable.create(f"{url}/{place}", pa.schema([("n", pa.int64())]), storage_options=dict(options))
            try:
                confirmed = _race(f"{url}/{place}", options)
                table = DeltaTable(f"{url}/{place}", storage_options=dict(options))
                lost = [name for name in confirmed if table.transaction_version(name) is None]
            finally:
                with contextlib.suppress(OSError):
                    DeltaStorageHandler(url, dict(options)).delete_dir(place)
        if lost:
            raise StoreRefusal(
                f"the store lost {len(lost)} of {len(confirmed)} commits that it had confirmed: it ignores the "
                "condition If-None-Match",
                "use a store with conditional writes: S3, MinIO, Ceph, Cloudflare R2",
            )


def _race(url: str, options: Mapping[str, str]) -> list[str]:
    """Commit at the same time by several handles of one version; return the names that were confirmed."""
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import DeltaError

    handles = [DeltaTable(url, storage_options=dict(options)) for _ in range(RACERS)]
    together, confirmed = threading.Barrier(RACERS), []

    def commit(number: int, table: DeltaTable) -> None:
        own = CommitProperties(app_transactions=[Transaction(f"racer-{number}", 1)])
        together.wait()
        # A commit that is refused is what a safe store does.
        with contextlib.suppress(DeltaError, OSError):
            table.create_write_transaction([], "append", table.schema(), commit_properties=own)
            confirmed.append(f"racer-{number}")

    threads = [threading.Thread(target=commit, args=one, daemon=True) for one in enumerate(handles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return confirmed


def explain_store_error(error: BaseException) -> tuple[str, str]:
    """Return the cause of a failed request in one sentence, and the fix."""
    text = _COLOUR.sub("", str(error))
    code = _CODE.search(text)
    found = (f"{code[1]}: {code[2]}" if code[2] else code[1]).rstrip(".") if code else ""
    if code and code[1] in LOGIN_CODES:
        return f"the store refused the credentials ({found})", "check the credentials on every instance"
    if code and code[1] == "NoSuchBucket":
        return "there is no such bucket", "create it, or correct its name and AWS_REGION"
    if (code and code[1] == "AccessDenied") or "403 Forbidden" in text:
        return f"the store refused the request ({found or '403 Forbidden'})", "allow reading, writing and listing"
    if found:
        return f"the store answered {found}", "check bucket, region and endpoint"
    status = _STATUS.search(text)
    reason = f"the store answered {status[0].strip()}" if status else " ".join(text.split())
    return reason, "check the endpoint, and that every instance reaches it"


def hide_secrets(text: str, options: Mapping[str, str]) -> str:
    """Return a text without the secrets of the options."""
    for name, value in options.items():
        if _SECRET.search(name) and len(value) >= LEAST_SECRET:
            text = text.replace(value, "***")
    return text


@contextlib.contextmanager
def store_errors(name: str, options: Mapping[str, str]) -> Iterator[None]:
    """Raise errors of a store as StoreError, in one sentence and without secrets."""
    try:
        with delta_errors():
            yield
    except OSError as error:
        cause, fix = explain_store_error(error)
        # Without the chain: messages below may repeat parts of a request.
        raise StoreError(f"{name}: {hide_secrets(cause, options)}", fix) from None
