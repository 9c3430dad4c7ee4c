"""Changes settings of groups, brokers and client metrics while the broker runs: checks, then disk, then their users.

What was changed survives a kill -9: it is on the disk before it counts, and is read before the coordinator starts.
Groups need not exist (as in Kafka: settings come before the first member). A refusal has Kafka's error code and words;
refused here, accepted by Kafka: unknown names, and values that the broker could not be started with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.config.broker_configuration import BROKER_SETTINGS, BrokerConfiguration
from headrace.broker.logs.partition_logs import default_log_config
from headrace.coordinator.configuration import check_bounds, checked_group_settings
from headrace.coordinator.settings import COORDINATOR_SETTINGS
from headrace.errors import ConfigError
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import Value, parse_value, render_value
from headrace.storage.directory_metadata import DynamicConfigs
from headrace.storage.errors import StorageError
from headrace.storage.log_directory import LogDirectory
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from headrace.coordinator.configuration import GroupCoordinatorConfiguration

__all__ = ["ALL_BROKERS", "DynamicSettings", "SettingsRefused"]

logger = logging.getLogger("headrace.broker")

ALL_BROKERS = ""
# Each is compared with every client that asks.
MOST_SUBSCRIPTIONS = 1_000


class SettingsRefused(Exception):
    """Settings, or levels of features, cannot be changed as asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DynamicSettings:
    """Mutable: the one place that changes them. Topics have theirs in `topic_administration`."""

    def __init__(
        self, directory: LogDirectory, configuration: BrokerConfiguration, changed: Callable[[], None]
    ) -> None:
        """`changed` is called when the coordinator's configuration is another one."""
        self._directory = directory
        self._configuration = configuration
        self._changed = changed
        self._take_brokers(self._directory.dynamic_configs.brokers)

    @property
    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """Group id → what was set for it; a group without settings of its own is not there."""
        return self._directory.dynamic_configs.groups

    @property
    def coordinator(self) -> GroupCoordinatorConfiguration:
        """The configuration of the group coordinator now in force."""
        from headrace.coordinator.configuration import GroupCoordinatorConfiguration

        return GroupCoordinatorConfiguration.from_settings(self._configuration.in_force(), self.groups)

    def of_broker(self, name: str) -> Mapping[str, str]:
        """Return the dynamic settings of the broker with this id, or with ALL_BROKERS for all."""
        return self._directory.dynamic_configs.brokers.get(name, {})

    def replace_group(self, group_id: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        """Replace all own settings of a group. Raises SettingsRefused."""
        if not group_id:
            raise SettingsRefused(ErrorCode.invalid_request, "Default group resources are not allowed.")
        # Checked against the settings in force, since a group's session timeout has to lie between the broker's bounds.
        in_force = {n: value for n, value in self._configuration.in_force().items() if n in COORDINATOR_SETTINGS}
        try:
            # All of the group's settings together: a session timeout may be valid only beside the heartbeat interval
            # that comes with it.
            kept = checked_group_settings(settings, in_force)
        except ConfigError as error:
            raise SettingsRefused(ErrorCode.invalid_config, error.message) from None
        if validate_only or kept == self.groups.get(group_id, {}):
            return
        # On the disk first: a change that was acknowledged is in force after a crash, too.
        self._keep(replace(self._directory.dynamic_configs, groups=_with(self.groups, group_id, kept)))
        self._changed()

    @property
    def client_metrics(self) -> Mapping[str, Mapping[str, str]]:
        """Name of a client metrics subscription → its settings."""
        return self._directory.dynamic_configs.client_metrics

    def replace_client_metrics(self, name: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        """Replace all settings of a client metrics subscription; without settings it is removed.

        Raises SettingsRefused.
        """
        from headrace.broker.config.client_metrics_settings import ClientMetricsSubscription, SubscriptionInvalid

        try:
            ClientMetricsSubscription.from_settings(name, settings)
        except SubscriptionInvalid as error:
            raise SettingsRefused(error.code, error.message) from None
        if validate_only or settings == self.client_metrics.get(name, {}):
            return
        if name not in self.client_metrics and len(self.client_metrics) >= MOST_SUBSCRIPTIONS:
            raise SettingsRefused(
                ErrorCode.policy_violation,
                f"There are {MOST_SUBSCRIPTIONS} client metrics subscriptions already. Remove one that is not needed.",
            )
        stored = self._directory.dynamic_configs
        self._keep(replace(stored, client_metrics=_with(stored.client_metrics, name, dict(settings))))

    def replace_broker(self, name: str, settings: Mapping[str, str], *, validate_only: bool) -> None:
        """Replace all dynamic settings of the broker, or of ALL_BROKERS.

        Raises SettingsRefused.
        """
        self._check_broker(name)
        try:
            kept = self._checked_broker(settings)
        except ConfigError as error:
            raise SettingsRefused(ErrorCode.invalid_request, error.message) from None
        if validate_only or kept == self.of_broker(name):
            return
        stored = self._directory.dynamic_configs
        self._keep(replace(stored, brokers=_with(stored.brokers, name, kept)))
        self._take_brokers(self._directory.dynamic_configs.brokers)
        self._changed()

    def _check_broker(self, name: str) -> None:
        own = str(self._configuration.integer("node.id"))
        if name in (ALL_BROKERS, own):
            return
        if not name.removeprefix("-").isdigit():
            raise SettingsRefused(ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}")
        raise SettingsRefused(ErrorCode.invalid_request, f"Unexpected broker id, expected {own}, but received {name}")

    def _checked_broker(self, settings: Mapping[str, str]) -> dict[str, str]:
        for name in settings:
            if name not in BROKER_SETTINGS:
                near = nearest(name, BROKER_SETTINGS)
                hint = f"; did you mean {near}?" if near else ""
                raise SettingsRefused(ErrorCode.invalid_request, f"Unknown broker config name: {name}{hint}")
        # Kafka's words and order: unknown names before those that need a restart.
        fixed = [name for name in settings if not BROKER_SETTINGS[name].dynamic]
        # Kafka's "read-only" settings: their value is used once, at the start.
        if fixed:
            raise SettingsRefused(
                ErrorCode.invalid_request, f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            )
        values = {name: parse_value(BROKER_SETTINGS[name], text) for name, text in sorted(settings.items())}
        # With the broker's other settings: bounds of groups, and pairs such as session and heartbeat.
        self._check_together(values)
        return {name: render_value(value) or "" for name, value in values.items()}

    def _check_together(self, values: Mapping[str, Value]) -> None:
        together = {**self._configuration.values, **values}
        check_bounds({name: value for name, value in together.items() if name in COORDINATOR_SETTINGS})

    def _keep(self, catalog: DynamicConfigs) -> None:
        try:
            self._directory.replace_dynamic_configs(catalog)
        except StorageError as error:
            raise SettingsRefused(ErrorCode.kafka_storage_error, str(error)) from error
        except OSError as error:
            raise SettingsRefused(ErrorCode.kafka_storage_error, f"The disk refused: {error.strerror}.") from error

    def _take_brokers(self, stored: Mapping[str, Mapping[str, str]]) -> None:
        """Put what is stored over what the broker was started with; new logs and open ones go by it."""
        own = str(self._configuration.integer("node.id"))
        # The broker's own value comes before that of all brokers, as in Kafka (DynamicBrokerConfig).
        self._configuration.changed.of_broker = self._readable(stored.get(own, {}))
        self._configuration.changed.of_cluster = self._readable(stored.get(ALL_BROKERS, {}))
        self._directory.change_defaults(default_log_config(self._configuration))

    def _readable(self, stored: Mapping[str, str]) -> dict[str, Value]:
        """Values that fit the broker as it was started this time; the others are logged and left out."""
        values: dict[str, Value] = {}
        for name, text in stored.items():
            # A setting may have been stored by an older version, or beside other start settings. It is left out, not an
            # error: a broker that does not start cannot be repaired through its API.
            try:
                value = parse_value(BROKER_SETTINGS[name], text)
                self._check_together({name: value})
            except (KeyError, ConfigError) as error:
                logger.warning("Ignoring stored setting %s=%s: %s", name, text, error)
            else:
                values[name] = value
        return values


def _with(
    all_of_them: Mapping[str, Mapping[str, str]], name: str, settings: Mapping[str, str]
) -> dict[str, Mapping[str, str]]:
    """An entry without settings is none."""
    changed = {other: values for other, values in all_of_them.items() if other != name}
    return {**changed, name: settings} if settings else changed
