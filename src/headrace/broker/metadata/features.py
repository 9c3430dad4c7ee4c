"""Features (KIP-584): which levels this broker can work at, and which one holds. Kept beside the changed settings.

`streams.version` 0 refuses streams groups, `group.version` 0 the consumer protocol of KIP-848. `metadata.version` names
the release whose APIs are spoken, at one level that cannot be changed: tools show it as the cluster's version.
`transaction.version` 2 lets each end of a transaction raise the epoch (KIP-890). What Kafka has beyond these (share
groups, eligible leader replicas, dynamic quorums) is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from headrace.broker.config.dynamic_settings import SettingsRefused
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError
from headrace.storage.log_directory import LogDirectory

__all__ = ["SUPPORTED_FEATURES", "FeatureRange", "FeatureUpdate", "Features"]

# FeatureUpdate.UpgradeType of UpdateFeatures version 1 and later (KIP-778).
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRange:
    """Levels that can be finalised; a new cluster starts at the highest."""

    lowest: int
    highest: int


SUPPORTED_FEATURES: Mapping[str, FeatureRange] = MappingProxyType(
    {
        "group.version": FeatureRange(lowest=0, highest=1),
        "metadata.version": FeatureRange(lowest=30, highest=30),  # 4.3-IV0
        "streams.version": FeatureRange(lowest=0, highest=1),
        "transaction.version": FeatureRange(lowest=0, highest=2),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """`upgrade_type`: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    name: str
    level: int
    upgrade_type: int


class Features:
    """Mutable: the finalised levels of this cluster."""

    def __init__(
        self, directory: LogDirectory, node_id: int, changed: Callable[[], None], protocols: Collection[str] = ()
    ) -> None:
        """`protocols`: those of `group.coordinator.rebalance.protocols`, which only a restart changes."""
        self._directory = directory
        self._node_id = node_id
        self._changed = changed
        self._protocols = protocols
        self._refresh()

    def _refresh(self) -> None:
        """Kinds of groups need both: the finalised feature, and their protocol among the coordinator's. Kept as
        attributes, because every heartbeat asks."""
        self.serves_streams_groups = "streams" in self._protocols and self.level("streams.version") > 0
        self.serves_consumer_groups = "consumer" in self._protocols and self.level("group.version") > 0

    @property
    def epoch(self) -> int:
        """Counts the changes."""
        return self._directory.dynamic_configs.features_epoch

    def level(self, name: str) -> int:
        """Return the finalised level; 0 is "off"."""
        # Not stored: the directory is older than the feature, or new; both start at the highest level.
        return self._directory.dynamic_configs.features.get(name, SUPPORTED_FEATURES[name].highest)

    def finalized(self) -> dict[str, int]:
        """Return the finalised features and their levels. A feature at level 0 is not finalised, as in Kafka."""
        return {name: self.level(name) for name in SUPPORTED_FEATURES if self.level(name) > 0}

    def update(self, updates: Iterable[FeatureUpdate], *, validate_only: bool) -> None:
        """Finalise levels, all or none. Raises SettingsRefused with INVALID_UPDATE_VERSION."""
        levels = {name: self.level(name) for name in SUPPORTED_FEATURES}
        before = dict(levels)
        # Against the levels as changed so far: a feature named twice is judged in order.
        for update in updates:
            reason = self._refusal(update, levels)
            if reason is not None:
                raise SettingsRefused(
                    ErrorCode.invalid_update_version,
                    "The update failed for all features since the following feature had an error: "
                    f"Invalid update version {update.level} for feature {update.name}. {reason}",
                )
            levels[update.name] = update.level
        if validate_only or levels == before:
            return
        stored = self._directory.dynamic_configs
        try:
            # On the disk before it is in force: a level that was acknowledged must hold after a crash.
            self._directory.replace_dynamic_configs(
                replace(stored, features=levels, features_epoch=stored.features_epoch + 1)
            )
        except StorageError as error:
            raise SettingsRefused(ErrorCode.kafka_storage_error, str(error)) from error
        except OSError as error:
            raise SettingsRefused(ErrorCode.kafka_storage_error, f"The disk refused: {error.strerror}.") from error
        self._refresh()
        self._changed()

    def _refusal(self, update: FeatureUpdate, levels: Mapping[str, int]) -> str | None:
        """Kafka's reasons, in Kafka's order and words."""
        downgrade = update.upgrade_type in (SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)
        if not downgrade and update.upgrade_type != UPGRADE:
            return "The controller does not support the given upgrade type."
        if update.level < 0:
            return "A feature version cannot be less than 0."
        present = levels.get(update.name, 0)
        controller = f"Local controller {self._node_id}"
        supported = SUPPORTED_FEATURES.get(update.name)
        if supported is None:
            return (
                f"Feature {update.name} not found."
                if downgrade and update.level == 0
                else f"{controller} does not support this feature."
            )
        # Level 0 is within the range of a feature that can be off; `metadata.version` cannot.
        if not supported.lowest <= update.level <= supported.highest:
            return f"{controller} only supports versions {supported.lowest}-{supported.highest}"
        # Kafka keeps a downgrade from happening by mistake: the request has to name it.
        if update.level < present and not downgrade:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade."
            )
        if update.level > present and downgrade:
            return "Can't downgrade to a newer version."
        return None
