"""Declared parts of an application: its settings, its sources and its outputs.

`StreamsApp` is the public class on top of this base. `check`, `verify` and `run` use the base, and the runtime the
frozen `ApplicationSettings`, so that none of them depends on the public class.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StructType

from headrace.checked_api import checked_api
from headrace.spark.application_settings import ApplicationSettings
from headrace.spark.compilation import Output, check_guarantee, check_new_output, compile_outputs
from headrace.spark.formats.schemas import COORDINATES, struct_of
from headrace.spark.frames import empty_frame
from headrace.spark.stream import Stream
from headrace.spark.stream_base import StreamBase
from headrace.spark.stream_source import RowSource, StreamSource
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    KEY_COLUMN,
    TASK_COLUMN,
    CompiledTopology,
    Leaving,
    TopicSource,
)

if TYPE_CHECKING:
    from headrace.client.network_client import NetworkClient
    from headrace.client.security import ClientSecurity

__all__ = ["ApplicationDeclaration"]


@checked_api()
class ApplicationDeclaration:
    """Settings and outputs while the program builds its application. Mutable.

    `StreamsApp.__init__` checks the arguments.
    """

    def __init__(
        self,
        name: str,
        *,
        spark: SparkSession,
        bootstrap_servers: str,
        security: ClientSecurity,
        auto_offset_reset: str,
        processing_guarantee: str,
        state_dir: Path,
        trigger_interval_ms: int,
        config: dict[str, int | str],
        where: str,
    ) -> None:
        """`where` is the line of the user's program, for errors."""
        self.name = name
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers
        self.security = security
        self.auto_offset_reset = auto_offset_reset
        self.processing_guarantee = processing_guarantee
        self.state_dir = state_dir
        self.trigger_interval_ms = trigger_interval_ms
        self.config = config
        self._where = where
        self._sources: dict[str, TopicSource] = {}
        self._outputs: list[Output] = []

    def _settings(self) -> ApplicationSettings:
        """Return the settings as they are now."""
        return ApplicationSettings(
            name=self.name,
            spark=self.spark,
            bootstrap_servers=self.bootstrap_servers,
            security=self.security,
            auto_offset_reset=self.auto_offset_reset,
            processing_guarantee=self.processing_guarantee,
            state_dir=Path(self.state_dir),
            trigger_interval_ms=self.trigger_interval_ms,
            config=MappingProxyType(dict(self.config)),
        )

    def compile(self) -> CompiledTopology:
        """Return the application as plain data, in the form that the runtime executes. Raises TopologyError."""
        compiled = compile_outputs(
            self.name,
            self._outputs,
            self._template_of_source,
            where=self._where,
            max_ahead_ms=int(self.config["headrace.event.time.max.ahead.ms"]),
            idle_timeout_ms=int(self.config["headrace.watermark.idle.timeout.ms"]),
        )
        return compiled.following_traces() if self.config["headrace.tracing"] != "none" else compiled

    def network_client(self, client_id: str, **settings: Any) -> NetworkClient:
        """Return a client of the application's cluster with its security. Raises CannotConnect when it is used."""
        from headrace.client.network_client import NetworkClient

        return NetworkClient(self.bootstrap_servers, client_id=client_id, security=self.security, **settings)

    def _template_of(self, columns: StructType, *, coordinates: bool = False) -> DataFrame:
        """Return an empty frame with `columns` and the runtime's own columns beside them."""
        schema = StructType(list(columns.fields))
        if coordinates:
            schema = StructType(schema.fields).add(COORDINATES_COLUMN, COORDINATES)
        schema = schema.add(TASK_COLUMN, IntegerType()).add(KEY_COLUMN, BinaryType())
        return empty_frame(self.spark, schema)

    def _template_of_source(self, source: RowSource) -> DataFrame:
        if not isinstance(source, TopicSource):
            return self._template_of(source.schema)
        return self._template_of(struct_of(source.schema_json), coordinates=source.value_format != "raw")

    def _stream_of(self, template: DataFrame, origins: tuple[StreamSource, ...]) -> Stream:
        return Stream(self, template, origins)

    def _leave(self, rows: StreamBase, sink: Leaving) -> None:
        """Add an output. Raises TopologyError if it conflicts with an existing one."""
        output = Output(rows=rows, sink=sink)
        # Conflicts are found here and not in `compile`, so that the error names the line that causes it.
        check_new_output(self._outputs, output)
        if self.processing_guarantee == "at_least_once":
            check_guarantee(output)
        self._outputs.append(output)
