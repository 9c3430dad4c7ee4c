"""Features of a cluster (KIP-584): the levels it supports, the one that is finalised, and changing that.

Described by ApiVersions, changed by UpdateFeatures (KIP-778): all of a call or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from kio.static.primitive import i8, i16

from headrace.client.admin_results import FeatureDescription
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["UpgradeType", "describe_features", "feature_outcomes", "update_request"]

UpgradeType = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]

_UPGRADE_TYPES: Final[Mapping[str, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


def describe_features(client: NetworkClient, *, node: int | None = None) -> dict[str, FeatureDescription]:
    """By name, in order; those that are not finalised are at level 0."""
    request = m.api_versions_request.ApiVersionsRequest(client_software_name="headrace", client_software_version="1")
    response = client.call(request, node=node)
    levels = {each.name: int(each.max_version_level) for each in response.finalized_features}
    ranges = {each.name: (int(each.min_version), int(each.max_version)) for each in response.supported_features}
    return {
        name: FeatureDescription(
            name=name,
            lowest=ranges.get(name, (0, 0))[0],
            highest=ranges.get(name, (0, 0))[1],
            level=levels.get(name, 0),
            epoch=int(response.finalized_features_epoch),
        )
        for name in sorted(ranges.keys() | levels.keys())
    }


def update_request(
    client: NetworkClient, levels: Mapping[str, int], upgrade_type: UpgradeType, *, validate_only: bool
) -> Any:
    """UpdateFeatures for these levels."""
    request = m.update_features_request
    return request.UpdateFeaturesRequest(
        timeout=from_ms(client.api_timeout_ms),
        feature_updates=tuple(
            request.FeatureUpdateKey(
                feature=name, max_version_level=i16(level), upgrade_type=i8(_UPGRADE_TYPES[upgrade_type])
            )
            for name, level in levels.items()
        ),
        validate_only=validate_only,
    )


def feature_outcomes(response: Any) -> list[tuple[ErrorCode, str, str | None]]:
    """One outcome for all."""
    return [(response.error_code, "other levels of features", response.error_message)]
