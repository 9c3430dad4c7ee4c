"""Reader of a server.properties file: settings with an effect here, settings without one and why, unknown names.

The file may have been made for Apache Kafka. Kafka's settings that have no meaning on one broker without replicas are
logged in one line, and an unknown name is logged with the nearest known one. Neither stops the start; an invalid value
of a setting that has an effect does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.broker.config.broker_configuration import BROKER_SETTINGS, BrokerConfiguration
from headrace.broker.config.kafka_setting_names import KAFKA_SETTING_NAMES, SETTINGS_WITHOUT_EFFECT
from headrace.broker.config.listener_configuration import prefixed_setting
from headrace.errors import ConfigError
from headrace.settings import list_of, render_value
from headrace.suggestions import nearest

__all__ = ["ServerProperties", "as_properties", "read_server_properties"]

_NO_CONTROLLER = "there is no controller beside the broker"
# First prefix that fits → why the setting means nothing here.
_REASONS = (
    (("process.roles", "controller.", "metadata.", "initial.broker.registration", "broker.heartbeat", "broker.session",
      "server.max.startup", "internal.metadata", "early.start", "unstable."), _NO_CONTROLLER),
    (("replica.", "num.replica", "leader.", "auto.leader", "unclean.", "replication.", "alter.log.dirs", "inter.broker",
      "security.inter.broker", "broker.rack", "num.replica.alter", "controlled.shutdown", "offsets.topic.replication",
      "transaction.state.log.replication", "transaction.state.log.min.isr"), "nothing is replicated"),
    (("num.network.threads", "num.io.threads", "background.threads", "queued.max", "socket.send", "socket.receive",
      "socket.listen", "num.recovery", "log.cleaner.threads", "log.cleaner.io"), "one event loop serves all"),
    (("remote.", "log.local.", "follower.fetch.last.tiered"), "there is no tiered storage"),
    (("share.", "group.share."), "there are no share groups"),
    (("metric.reporters", "metrics.", "kafka.metrics"), "metrics are on --metrics-port"),
    (("delegation.token",), "there are no delegation tokens"),
    (("broker.id",), "a broker is named by node.id"),
)  # fmt: skip
_OTHER = "it does nothing here"
_HIDDEN = "[hidden]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProperties:
    """`settings` are for BrokerConfiguration; `notices` are whole sentences for the operator."""

    settings: Mapping[str, str]
    notices: tuple[str, ...]


def read_server_properties(given: Mapping[str, str]) -> ServerProperties:
    """Sort what a file sets. Raises ConfigError `bad-value` for several data directories."""
    # 1. What this broker understands.
    settings = {name: value for name, value in given.items() if _is_known(name)}
    # 2. `log.dir` is the older name for one directory; `log.dirs` comes before it.
    if "log.dir" in given and "log.dirs" not in settings:
        settings["log.dirs"] = given["log.dir"]
    _check_one_directory(settings.get("log.dirs", ""))
    # 3. Listeners of a controller are left out, with a notice: the file may be one for Kafka in combined mode.
    notices = list(_without_controller(settings, given.get("controller.listener.names", "")))
    # 4. The rest is reported and never refused: a file that Kafka accepts starts this broker, too.
    rest = sorted(name for name in given if name not in settings and name != "log.dir")
    notices += _meaningless(name for name in rest if name in KAFKA_SETTING_NAMES)
    notices += [_unknown(name) for name in rest if name not in KAFKA_SETTING_NAMES]
    return ServerProperties(settings=settings, notices=tuple(notices))


def as_properties(configuration: BrokerConfiguration) -> str:
    """Return all settings as a properties file: defaults as comments, secrets hidden."""
    lines = [f"# data directory: {configuration.data_dir}", f"# listens on: {configuration.host}:{configuration.port}"]
    in_force = configuration.in_force()
    for name in sorted({*BROKER_SETTINGS, *in_force} - (SETTINGS_WITHOUT_EFFECT.keys() - in_force.keys())):
        setting = BROKER_SETTINGS.get(name) or prefixed_setting(name)
        value = in_force[name] if name in in_force else configuration.get(name)
        text = render_value(value)
        if text is None:
            continue
        # A name without a row may hold a secret.
        secret = setting is None or setting.kind == "password"
        shown = _HIDDEN if secret else text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{'' if name in in_force else '#'}{name}={shown}")
    return "\n".join(lines) + "\n"


def _is_known(name: str) -> bool:
    if name in SETTINGS_WITHOUT_EFFECT:
        return False  # kept when an operator changes it on a running broker; from a file it is only reported
    return name in BROKER_SETTINGS or prefixed_setting(name) is not None


def _check_one_directory(directories: str) -> None:
    if len(list_of(directories)) > 1:
        raise ConfigError(
            "bad-value",
            f"`log.dirs={directories}` names several directories: this broker keeps its data in one.",
            "Name one, on a file system that is large enough.",
            setting="log.dirs",
        )


def _without_controller(settings: dict[str, str], controllers: str) -> Iterable[str]:
    """Take the controller's listeners out: a file for Kafka in combined mode names them beside the broker's."""
    names = {name.upper() for name in list_of(controllers)}
    for setting in ("listeners", "advertised.listeners"):
        listeners = list_of(settings.get(setting, ""))
        kept = [each for each in listeners if each.partition("://")[0].strip().upper() not in names]
        if len(kept) < len(listeners) and kept:
            settings[setting] = ",".join(kept)
            left_out = ", ".join(each for each in listeners if each not in kept)
            yield f"`{setting}` goes without {left_out}: {_NO_CONTROLLER}."


def _meaningless(names: Iterable[str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name in names:
        # By prefix, so that settings of later versions of Kafka fall under the same reasons.
        reason = next((reason for prefixes, reason in _REASONS if name.startswith(prefixes)), _OTHER)
        by_reason.setdefault(reason, []).append(name)
    ignored = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return [f"Ignored settings of Apache Kafka: {ignored}."] if ignored else []


def _unknown(name: str) -> str:
    near = nearest(name, {*BROKER_SETTINGS, *KAFKA_SETTING_NAMES})
    hint = f"; did you mean `{near}`?" if near else "."
    return f"`{name}` is no setting of a broker and is left out{hint}"
