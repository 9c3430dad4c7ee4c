"""Every API this broker serves, one row each. ApiVersions is answered from here, so nothing is advertised that has no
handler; the versions are `protocol.supported_versions`'s.

Not served yet, therefore not advertised: share groups.
Handlers are imported when first called: all of them with their message classes would cost half a second of every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from headrace.broker.requests.request_bounds import answer_once
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.requests.throttling import counted
from headrace.broker.services import Services
from headrace.protocol.api_keys import ApiKey

__all__ = ["SERVED", "ApiTable"]

Handler = Callable[[Any, RequestContext], object]

# Key → the module in `handlers/`. The order is Kafka's, by key.
SERVED: Mapping[ApiKey, str] = MappingProxyType(
    {
        key: key.stem
        for key in (
            ApiKey.PRODUCE,
            ApiKey.FETCH,
            ApiKey.LIST_OFFSETS,
            ApiKey.METADATA,
            ApiKey.OFFSET_COMMIT,
            ApiKey.OFFSET_FETCH,
            ApiKey.FIND_COORDINATOR,
            ApiKey.JOIN_GROUP,
            ApiKey.HEARTBEAT,
            ApiKey.LEAVE_GROUP,
            ApiKey.SYNC_GROUP,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.LIST_GROUPS,
            ApiKey.SASL_HANDSHAKE,
            ApiKey.API_VERSIONS,
            ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS,
            ApiKey.DELETE_RECORDS,
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            ApiKey.DESCRIBE_LOG_DIRS,
            ApiKey.SASL_AUTHENTICATE,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.DELETE_GROUPS,
            ApiKey.ELECT_LEADERS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.OFFSET_DELETE,
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.DESCRIBE_QUORUM,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKey.UPDATE_FEATURES,
            ApiKey.DESCRIBE_CLUSTER,
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.LIST_TRANSACTIONS,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.LIST_CONFIG_RESOURCES,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_DESCRIBE,
        )
    }
)


class ApiTable:
    """The handlers of one broker, bound to its services. Mutable: fills itself as APIs are first called."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._bound: dict[int, Handler] = {}

    def handler(self, api_key: int) -> Handler | None:
        """None for an API that is not served."""
        return self._bound.get(api_key) or self._bind(api_key)

    def _bind(self, api_key: int) -> Handler | None:
        try:
            key = ApiKey(api_key)
        except ValueError:
            return None
        if key not in SERVED:
            return None
        module = import_module(f"headrace.broker.handlers.{SERVED[key]}")
        if key is ApiKey.API_VERSIONS:
            handler: Handler = partial(module.handle, served=tuple(SERVED), features=self._services.features)
        else:
            handler = partial(module.handle, broker=self._services)
            handler = counted(key, handler, self._services)
            if self._services.authorizer.enabled:
                handler = self._guarded(key, handler)
            handler = answer_once(key, handler)
        self._bound[key] = handler
        return handler

    def _guarded(self, key: ApiKey, handler: Handler) -> Handler:
        """Imported here only: it is not needed without an authorizer."""
        from headrace.broker.security.access_checks import guarded

        return guarded(key, handler, self._services)
