"""Requests that set and describe SCRAM credentials, right and wrong; the answers in plain words."""

from __future__ import annotations

from kio.static.primitive import i8, i32

from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m

__all__ = ["ALTERATIONS", "DESCRIPTIONS", "altered", "described"]

# user, mechanism, iterations, salt, salted password; without iterations: a deletion
Change = tuple[str, int, int, bytes, bytes] | tuple[str, int]
SALT, SALTED = b"salt" * 5, b"p" * 32

ALTERATIONS: dict[str, tuple[Change, ...]] = {
    "two mechanisms": (("dora", 1, 4096, SALT, SALTED), ("dora", 2, 8192, SALT, b"p" * 64)),
    "too few iterations": (("erna", 1, 4095, SALT, SALTED),),
    "too many iterations": (("erna", 1, 16385, SALT, SALTED),),
    "most iterations": (("erna", 1, 16384, SALT, SALTED),),
    "no name": (("", 1, 4096, SALT, SALTED),),
    "unknown mechanism": (("fred", 0, 4096, SALT, SALTED), ("gina", 3, 4096, SALT, SALTED)),
    "no salt": (("hans", 1, 4096, b"", SALTED),),
    "deletion of nobody": (("ilse", 1),),
    "deletion of another mechanism": (("erna", 2),),
    "deletion of an unknown mechanism": (("erna", 9),),
    "set twice": (("jack", 1, 4096, SALT, SALTED), ("jack", 1, 8192, SALT, SALTED)),
    "set and deleted": (("dora", 1, 4096, SALT, SALTED), ("dora", 1)),
    "one right, one wrong, of the same user": (("kurt", 1, 4096, SALT, SALTED), ("kurt", 2, 1, SALT, SALTED)),
    "one right, one wrong user": (("lisa", 1, 4096, SALT, SALTED), ("mona", 1, 1, SALT, SALTED)),
    "deleted": (("erna", 1),),
    "nothing": (),
}

DESCRIPTIONS: dict[str, tuple[str, ...] | None] = {
    "all": None,
    "empty: all": (),
    "one": ("dora",),
    "nobody": ("nobody",),
    "twice": ("dora", "dora"),
    "some": ("lisa", "nobody", "dora", "erna"),
}


def altered(client: NetworkClient, changes: tuple[Change, ...]) -> list[tuple[object, ...]]:
    r = m.alter_user_scram_credentials_request
    request = r.AlterUserScramCredentialsRequest(
        deletions=tuple(r.ScramCredentialDeletion(name=c[0], mechanism=i8(c[1])) for c in changes if len(c) == 2),
        upsertions=tuple(
            r.ScramCredentialUpsertion(
                name=c[0], mechanism=i8(c[1]), iterations=i32(c[2]), salt=c[3], salted_password=c[4]
            )
            for c in changes
            if len(c) == 5
        ),
    )
    answer = client.call(request)
    return sorted((result.user, result.error_code.name, result.error_message or "") for result in answer.results)


def described(client: NetworkClient, users: tuple[str, ...] | None) -> tuple[object, ...]:
    r = m.describe_user_scram_credentials_request
    named = None if users is None else tuple(r.UserName(name=user) for user in users)
    answer = client.call(r.DescribeUserScramCredentialsRequest(users=named))
    results = sorted(
        (
            result.user,
            result.error_code.name,
            result.error_message or "",
            sorted((int(info.mechanism), int(info.iterations)) for info in result.credential_infos),
        )
        for result in answer.results
    )
    return answer.error_code.name, answer.error_message or "", results
