"""Settings of an application that starts. The runtime depends on these instead of the public `StreamsApp`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.client.security import ClientSecurity

__all__ = ["ApplicationSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSettings:
    """Arguments of `StreamsApp` at the time of its start. Later changes by the program have no effect.

    Attributes:
        name: Group id, and prefix of internal topics.
        config: Every setting by Kafka's name, defaults included, except those of security.
        security: Connection settings, which hold secrets.
    """

    name: str
    spark: SparkSession
    bootstrap_servers: str
    security: ClientSecurity
    auto_offset_reset: str
    processing_guarantee: str
    state_dir: Path
    trigger_interval_ms: int
    config: Mapping[str, int | str]

    @property
    def client_id(self) -> str:
        """The `client.id` of the application's clients: the setting, or the application's name."""
        return str(self.config.get("client.id") or self.name)
