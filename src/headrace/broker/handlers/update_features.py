"""UpdateFeatures (API 57, KIP-584, KIP-778): finalised levels of features go up or down, all or none.

Version notes: v0 knows no validate_only and only "a downgrade is allowed" (a safe one); v2 has one outcome for all.
"""

from __future__ import annotations

from headrace.broker.config.dynamic_settings import SettingsRefused
from headrace.broker.metadata.features import FeatureUpdate
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.update_features_request.UpdateFeaturesRequest, _call: RequestContext, broker: Services
) -> m.update_features_response.UpdateFeaturesResponse:
    """Answer one UpdateFeatures request."""
    code, message = ErrorCode.none, None
    updates = [
        FeatureUpdate(name=each.feature, level=int(each.max_version_level), upgrade_type=int(each.upgrade_type))
        for each in request.feature_updates
    ]
    try:
        broker.features.update(updates, validate_only=request.validate_only)
    except SettingsRefused as refusal:
        code, message = refusal.code, refusal.message
    return m.update_features_response.UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message
    )
