"""Options and servers under which commits of a Delta table could be lost are refused."""

import pytest
from tests.harness.s3_server import BUCKET, SECRET

from headrace.spark.sinks.object_store import (
    StoreError,
    StoreRefusal,
    check_conditional_writes,
    check_options,
    check_url,
    complete_options,
    explain_store_error,
    hide_secrets,
)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("gs://lake/flights", "gs:// are not supported"),
        ("s3://key:secret@lake/flights", "cannot have credentials"),
        ("s3://lake", "names no directory"),
        ("s3:///flights", "names no directory"),
        ("s3://lake/flights?region=x", "names no directory"),
    ],
)
def test_places_that_are_none_are_refused(url, why):
    with pytest.raises(StoreRefusal, match=why) as raised:
        check_url(url)
    assert raised.value.fix
    assert "secret" not in str(raised.value)


def test_a_slash_at_the_end_is_no_part_of_the_name():
    assert check_url("s3a://lake/a/b/") == "s3a://lake/a/b"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true"),
        ("aws_s3_allow_unsafe_rename", "1"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb"),
        ("aws_conditional_put", "disabled"),
        ("CONDITIONAL_PUT", "dynamo:locks"),
    ],
)
def test_options_that_make_commits_unsafe_are_refused(monkeypatch, name, value):
    with pytest.raises(StoreRefusal, match=name):
        check_options({name: value})
    monkeypatch.setenv(name, value)
    with pytest.raises(StoreRefusal, match=name):
        check_options({})


def test_safe_options_are_accepted():
    check_options({"AWS_S3_ALLOW_UNSAFE_RENAME": "false", "aws_conditional_put": "etag", "AWS_REGION": "x"})
    with pytest.raises(StoreRefusal, match="texts"):
        check_options({"AWS_REGION": 1})  # type: ignore[dict-item]


def test_limits_of_time_are_those_of_the_user():
    assert complete_options({"MAX_RETRIES": "9"}).get("max_retries") is None
    assert complete_options({})["retry_timeout"] == "60s"


def test_a_store_that_ignores_conditions_is_refused(s3):
    url = f"s3://{BUCKET}/conditions"
    check_conditional_writes(url, s3.delta_options())
    s3.fail([(0, "always ignores")], "_delta_log/")
    with pytest.raises(StoreRefusal, match=r"lost \d of \d commits that it had confirmed"):
        check_conditional_writes(url, s3.delta_options())
    s3.fail([])
    with pytest.raises(StoreError, match="refused the credentials"):
        check_conditional_writes(url, s3.delta_options(secret="other"))


def test_secrets_are_hidden():
    options = {"AWS_SECRET_ACCESS_KEY": SECRET, "aws_session_token": "tok", "AWS_REGION": "us-east-1"}
    assert hide_secrets(f"{SECRET} us-east-1 tok", options) == "*** us-east-1 tok", "three letters are no secret"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("\x1b[31mx <Code>NoSuchBucket</Code><Message>none.</Message>", "there is no such bucket"),
        ("GET .. 503 Service Unavailable", "the store answered 503 Service Unavailable"),
        ("<Code>SlowDown</Code>", "the store answered SlowDown"),
        ("403 Forbidden", "the store refused the request (403 Forbidden)"),
        ("cannot\n connect", "cannot connect"),
    ],
)
def test_causes_are_one_sentence(text, cause):
    found, fix = explain_store_error(OSError(text))
    assert found == cause
    assert fix
