"""Whether a client may do what it asks: super users, access rules (`acls`), and what holds where there are none.

Switched on by `authorizer.class.name` (Kafka's StandardAuthorizer, or plainly `on`); switched off, everything is
allowed without a check. Rules are on the disk before they count, and count at once: a change makes a new index,
empties the memory of earlier decisions, and invalidates the response caches (`CacheGeneration`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kio.static.primitive import i32

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.storage.log_directory import LogDirectory

__all__ = ["ON_CLUSTER", "ON_GROUP", "ON_TOPIC", "OPERATIONS", "UNKNOWN", "Authorizer"]


# Clients choose the names that they ask about, so the memory of decisions is bounded. It is emptied as a whole: an
# order of eviction would cost each check more than a rare recomputation.
MOST_DECISIONS = 10_000
_OFF = ("", "off")
# org.apache.kafka.security.authorizer.AclEntry.supportedOperations
OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Authorizer:
    """Mutable: the rules of one broker, and what was decided by them."""

    def __init__(
        self, configuration: BrokerConfiguration, directory: LogDirectory, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when other rules are in force."""
        self.enabled = str(configuration.get("authorizer.class.name") or "") not in _OFF
        self._everyone = configuration.flag("allow.everyone.if.no.acl.found")
        self._super_users = frozenset(
            name.strip() for name in str(configuration.get("super.users") or "").split(";") if name.strip()
        )
        self._directory = directory
        self._changed = changed
        self._index = AclIndex(_read(each) for each in directory.acls)
        self._decided: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    @property
    def acls(self) -> frozenset[Acl]:
        return self._index.acls

    def is_allowed(
        self, context: RequestContext, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether the client of a request may perform an operation.

        Args:
            context: names the principal and the host.
            operation: Kafka's AclOperation.
            kind: type of the resource.
            name: name of the resource; of the cluster by default.
        """
        if not self.enabled:
            return True
        # Rules name addresses as text; Java prints an InetAddress with a slash in front, which group descriptions keep.
        key = str(context.principal), context.client_host.removeprefix("/"), operation, kind, name
        decision = self._decided.get(key)
        if decision is None:
            decision = key[0] in self._super_users or self._index.decide(*key, otherwise=self._everyone)
            if len(self._decided) >= MOST_DECISIONS:
                self._decided.clear()
            self._decided[key] = decision
        return decision

    def on_cluster(self, context: RequestContext, operation: Operation) -> bool:
        return self.is_allowed(context, operation, ResourceType.CLUSTER)

    def on_topic(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self.is_allowed(context, operation, ResourceType.TOPIC, name)

    def on_group(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self.is_allowed(context, operation, ResourceType.GROUP, name)

    def on_transactional_id(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self.is_allowed(context, operation, ResourceType.TRANSACTIONAL_ID, name)

    def allowed_on_any(self, context: RequestContext, operation: Operation, kind: ResourceType) -> bool:
        """Whether there is a name at all on which this client may."""
        if not self.enabled or self.is_allowed(
            context, operation, kind, "hardcode"
        ):  # as Kafka: super users get in by this
            return True
        return self._index.decide_any(str(context.principal), context.client_host.removeprefix("/"), operation, kind)

    def operations(self, context: RequestContext, kind: ResourceType, name: str = CLUSTER_NAME) -> i32:
        """Return what this client may do with a resource: a bit for each operation, numbered as Kafka's
        AclOperation."""
        # Kafka's Authorized Operations (KIP-430): a bit per AclOperation code.
        return i32(sum(1 << each for each in OPERATIONS[kind] if self.is_allowed(context, each, kind, name)))

    def add(self, acls: Iterable[Acl]) -> None:
        """Add rules. Raises StorageError, OSError; nothing has changed then."""
        self._replace(self.acls | frozenset(acls))

    def remove(self, acls: Iterable[Acl]) -> None:
        """Remove rules. Raises StorageError, OSError; nothing has changed then."""
        self._replace(self.acls - frozenset(acls))

    def matching(self, wanted: AclFilter) -> list[Acl]:
        return sorted(acl for acl in self.acls if wanted.fits(acl))

    def _replace(self, acls: frozenset[Acl]) -> None:
        if acls == self.acls:
            return
        # 1. On the disk before it counts: a rule that was acknowledged survives a crash.
        self._directory.replace_acls(tuple(_stored(acl) for acl in sorted(acls)))
        # 2. A new index, not a changed one: a check that runs has either all of the old rules or all of the new.
        self._index = AclIndex(acls)
        self._decided.clear()
        # 3. Cached responses were given under the old rules.
        self._changed()


def _stored(acl: Acl) -> dict[str, str]:
    return {
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def _read(stored: Mapping[str, str]) -> Acl:
    return Acl(
        resource_type=ResourceType[stored["resource_type"]],
        resource_name=stored["resource_name"],
        pattern_type=PatternType[stored["pattern_type"]],
        principal=stored["principal"],
        host=stored["host"],
        operation=Operation[stored["operation"]],
        permission=Permission[stored["permission"]],
    )


def _bits(*operations: Operation) -> i32:
    """Return a bit for each operation, numbered as Kafka's AclOperation."""
    return i32(sum(1 << operation for operation in operations))


# Authorized operations without an authorizer: every operation that the kind of resource has.
ON_CLUSTER = _bits(*OPERATIONS[ResourceType.CLUSTER])
ON_TOPIC = _bits(*OPERATIONS[ResourceType.TOPIC])
ON_GROUP = _bits(*OPERATIONS[ResourceType.GROUP])
UNKNOWN = i32(-(2**31))
"""The request did not ask for operations."""
