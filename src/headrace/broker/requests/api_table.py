"""Every API this broker serves, one row each, and its handler.

ApiVersions is answered from `SERVED`, so nothing is advertised that has no handler; the versions are
`protocol.api_keys`'s. Not served yet, therefore not advertised: share groups. Handlers are imported when
first called: all of them with their message classes would cost half a second of every start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType

from headrace.broker.requests.partial_response import Api, Authorize, GuardedRequest, Message
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol.api_keys import ApiKey

__all__ = ["SERVED", "ApiTable", "answer_once"]


Handler = Callable[[Message, RequestContext], object]

# The module in `handlers/` of each API, whose `APIS` has the handler and the access rule. The order is Kafka's, by key.
SERVED: Mapping[ApiKey, str] = MappingProxyType(
    {
        ApiKey.PRODUCE: "produce",
        ApiKey.FETCH: "fetch",
        ApiKey.LIST_OFFSETS: "log_offsets",
        ApiKey.METADATA: "metadata",
        ApiKey.OFFSET_COMMIT: "committed_offsets",
        ApiKey.OFFSET_FETCH: "committed_offsets",
        ApiKey.FIND_COORDINATOR: "groups",
        ApiKey.JOIN_GROUP: "classic_group",
        ApiKey.HEARTBEAT: "classic_group",
        ApiKey.LEAVE_GROUP: "classic_group",
        ApiKey.SYNC_GROUP: "classic_group",
        ApiKey.DESCRIBE_GROUPS: "groups",
        ApiKey.LIST_GROUPS: "groups",
        ApiKey.SASL_HANDSHAKE: "connection_setup",
        ApiKey.API_VERSIONS: "connection_setup",
        ApiKey.CREATE_TOPICS: "topics",
        ApiKey.DELETE_TOPICS: "topics",
        ApiKey.DELETE_RECORDS: "log_offsets",
        ApiKey.INIT_PRODUCER_ID: "transactions",
        ApiKey.OFFSET_FOR_LEADER_EPOCH: "log_offsets",
        ApiKey.ADD_PARTITIONS_TO_TXN: "transactions",
        ApiKey.ADD_OFFSETS_TO_TXN: "transactions",
        ApiKey.END_TXN: "transactions",
        ApiKey.WRITE_TXN_MARKERS: "transaction_admin",
        ApiKey.TXN_OFFSET_COMMIT: "txn_offset_commit",
        ApiKey.DESCRIBE_ACLS: "acls",
        ApiKey.CREATE_ACLS: "acls",
        ApiKey.DELETE_ACLS: "acls",
        ApiKey.DESCRIBE_CONFIGS: "configs",
        ApiKey.ALTER_CONFIGS: "alter_configs",
        ApiKey.ALTER_REPLICA_LOG_DIRS: "replicas",
        ApiKey.DESCRIBE_LOG_DIRS: "replicas",
        ApiKey.SASL_AUTHENTICATE: "connection_setup",
        ApiKey.CREATE_PARTITIONS: "topics",
        ApiKey.DELETE_GROUPS: "groups",
        ApiKey.ELECT_LEADERS: "replicas",
        ApiKey.INCREMENTAL_ALTER_CONFIGS: "alter_configs",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: "replicas",
        ApiKey.LIST_PARTITION_REASSIGNMENTS: "replicas",
        ApiKey.OFFSET_DELETE: "committed_offsets",
        ApiKey.DESCRIBE_CLIENT_QUOTAS: "client_quotas",
        ApiKey.ALTER_CLIENT_QUOTAS: "client_quotas",
        ApiKey.DESCRIBE_QUORUM: "cluster",
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "scram_credentials",
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "scram_credentials",
        ApiKey.UPDATE_FEATURES: "cluster",
        ApiKey.DESCRIBE_CLUSTER: "cluster",
        ApiKey.DESCRIBE_PRODUCERS: "transaction_admin",
        ApiKey.DESCRIBE_TRANSACTIONS: "transaction_admin",
        ApiKey.LIST_TRANSACTIONS: "transaction_admin",
        ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_group",
        ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer_group",
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "telemetry",
        ApiKey.PUSH_TELEMETRY: "telemetry",
        ApiKey.LIST_CONFIG_RESOURCES: "configs",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata",
        ApiKey.STREAMS_GROUP_HEARTBEAT: "streams_group",
        ApiKey.STREAMS_GROUP_DESCRIBE: "streams_group",
    }
)


class ApiTable(dict[int, Handler | None]):
    """API key → handler, None for one that is not served. Mutable: fills itself as APIs are first called.

    The handlers are bound to the services of one broker.
    """

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services

    def __missing__(self, api_key: int) -> Handler | None:
        try:
            key = ApiKey(api_key)
        except ValueError:
            return None
        if key not in SERVED:
            return None
        module = import_module(f"headrace.broker.handlers.{SERVED[key]}")
        # The access rule stands beside its handler: a new API cannot be served with the rule forgotten in another file.
        api: Api = module.APIS[key]
        handler: Handler = partial(api.handle, broker=self._services)
        # No authorizer, no rule: the handler is called without a detour, which is the case of every broker in a test.
        if api.authorize is not None and self._services.authorizer.enabled:
            handler = partial(_authorize, key, api.authorize, handler, self._services)
        # Outermost, so that access is not checked twice for a name that is given twice.
        handler = answer_once(key, handler)
        self[key] = handler
        return handler


def _authorize(
    key: ApiKey, authorize: Authorize, handle: Handler, broker: Services, request: Message, context: RequestContext
) -> object:
    """Run the access rule of an API in front of its handler."""
    return authorize(GuardedRequest(key, request, context, broker, handle))


# Questions whose answer grows with what they name: 1,600 times the same topic of 1,000 partitions would be 41 MB.
_NAMED_ONCE: Mapping[ApiKey, str] = MappingProxyType(
    {
        ApiKey.METADATA: "topics",
        ApiKey.OFFSET_FETCH: "groups",
        ApiKey.FIND_COORDINATOR: "coordinator_keys",
        ApiKey.DESCRIBE_GROUPS: "groups",
        ApiKey.CONSUMER_GROUP_DESCRIBE: "group_ids",
        ApiKey.STREAMS_GROUP_DESCRIBE: "group_ids",
        ApiKey.DESCRIBE_CONFIGS: "resources",
        ApiKey.DESCRIBE_LOG_DIRS: "topics",
        ApiKey.DESCRIBE_PRODUCERS: "topics",
        ApiKey.DESCRIBE_TRANSACTIONS: "transactional_ids",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: "topics",
    }
)


def answer_once(key: ApiKey, handle: Handler) -> Handler:
    """Return a handler that sees each thing that a question names once, in the order of its first appearance."""
    field = _NAMED_ONCE.get(key)
    if field is None:
        return handle

    def handle_each_once(request: Message, call: RequestContext) -> object:
        items = getattr(request, field)
        if items is not None and len(items) > 1:
            different = tuple(dict.fromkeys(items))
            if len(different) < len(items):
                request = dataclasses.replace(request, **{field: different})
        return handle(request, call)

    return handle_each_once
