"""Levels of features: changes, versions of UpdateFeatures, and what is refused below a level."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, tasks_of, topology
from tests.harness.brokers import Connect, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.metadata.features import SUPPORTED_FEATURES
from headrace.client.admin import Admin
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

FIVE_SECONDS = dt.timedelta(seconds=5)

broker = broker_fixture({"flights": 4}, config=FAST)


@pytest.mark.parametrize("off", ["feature", "protocols"])
def test_streams_groups_are_refused_when_they_are_off(off: str, connect: Connect) -> None:
    protocols = {"group.coordinator.rebalance.protocols": "classic,consumer"} if off == "protocols" else {}
    with EmbeddedBroker(topics={"flights": 4}, config={**FAST, **protocols}) as broker:
        client = connect(broker)
        if off == "feature":
            joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
            assert tasks_of(joined) == {"0": (0, 1, 2, 3)}
            steady = heartbeat("a", joined.member_epoch)
            for _ in range(3):  # an answer that may be repeated without asking anybody
                assert client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, steady).error_code is ErrorCode.none
            with Admin(broker.bootstrap_servers) as admin:
                admin.update_features({"streams.version": 0}, upgrade_type="safe_downgrade")
            refused = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, steady)
        else:
            refused = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("a", 0, topology=topology()))
        assert refused.error_code is ErrorCode.unsupported_version
        request = m.streams_group_describe_request.StreamsGroupDescribeRequest(
            group_ids=("delays", "other"), include_authorized_operations=False
        )
        described = client.call(ApiKey.STREAMS_GROUP_DESCRIBE, request).groups
        assert [each.error_code for each in described] == [ErrorCode.unsupported_version] * 2
        if off == "feature":
            with Admin(broker.bootstrap_servers) as admin:
                admin.update_features({"streams.version": 1})
            assert client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, steady).error_code is ErrorCode.none


def test_levels_of_features_are_all_or_nothing(broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        assert {name: each.level for name, each in admin.describe_features().items()} == {
            name: levels.highest for name, levels in SUPPORTED_FEATURES.items()
        }
        with pytest.raises(BrokerError, match="Local controller 1 does not support this feature"):
            admin.update_features({"streams.version": 0, "share.version": 1}, upgrade_type="unsafe_downgrade")
        assert admin.describe_features()["streams.version"].level == 1
        admin.update_features({"streams.version": 0}, upgrade_type="safe_downgrade", validate_only=True)
        assert admin.describe_features()["streams.version"].level == 1


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_of_update_features(broker: EmbeddedBroker, connect: Connect, version: int) -> None:
    r = m.update_features_request
    update = r.FeatureUpdateKey(feature="streams.version", max_version_level=0, upgrade_type=2)
    request = r.UpdateFeaturesRequest(timeout=FIVE_SECONDS, feature_updates=(update,), validate_only=False)
    assert connect(broker).call(ApiKey.UPDATE_FEATURES, request, version).error_code is ErrorCode.none
    with Admin(broker.bootstrap_servers) as admin:
        assert admin.describe_features()["streams.version"].level == 0
