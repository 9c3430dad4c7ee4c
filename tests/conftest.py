"""For all tests: what a program inherits from its shell must not decide a test; long modules come first."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest
from _pytest.terminal import TerminalReporter
from tests.harness.certificates import Certificates

# What a loaded machine makes slow is not wrong.
hypothesis.settings.register_profile("headrace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("headrace")

# A run started in the background by a shell ignores SIGINT, and its children would inherit that: Ctrl-C is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark's JVMs live for seconds here: the second compiler and parallel collectors would cost more than they bring.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

LONGEST_FIRST = (
    "spark/test_commit_path_crashes.py",
    "docs/test_readme.py",
    "spark/runtime/test_all_aggregates.py",
    "spark/runtime/slots/test_resident_slots.py",
    "chaos/test_chaos.py",
    "spark/runtime/test_stream_joins.py",
    "spark/runtime/test_upgraded_state.py",
    "spark/test_event_time_crashes.py",
    "nexmark/test_runner.py",
    "spark/runtime/test_windows.py",
    "spark/test_foreign_key_join.py",
    "spark/test_json_schema_topics.py",
    "spark/data_source/test_stream_reader.py",
    "spark/runtime/test_edited_programs.py",
    "spark/runtime/test_top_n.py",
    "spark/verification/test_verify.py",
    "interop/test_kafka_streams_application.py",
    "cli/commands/test_demo.py",
    "spark/runtime/batches/test_sink_stage.py",
    "spark/runtime/test_deduplication.py",
    "spark/runtime/test_exactly_once.py",
    "spark/runtime/test_standby.py",
    "spark/runtime/test_clusters.py",
    "interop/test_streams_app_on_kafka.py",
    "spark/test_sharing_in_a_classic_group.py",
    "spark/runtime/test_database_sinks.py",
    "spark/runtime/test_foreign_keys.py",
    "spark/test_state_queries_running.py",
    "interop/test_spark_sink_on_kafka.py",
    "interop/test_classic_streams_on_kafka.py",
    "spark/data_source/test_stream_writer.py",
    "interop/test_ui_on_kafka.py",
    "spark/runtime/test_bad_circumstances.py",
    "cli/test_running.py",
    "cli/test_application.py",
    "testing/test_examples.py",
    "spark/test_avro_topics.py",
    "spark/analysis/test_table_changes.py",
    "spark/runtime/test_tables.py",
    "spark/runtime/operators/test_aggregate_states.py",
    "interop/test_apache_kafka_44.py",
    "spark/test_closed_windows.py",
    "spark/runtime/test_versioned_joins.py",
    "spark/analysis/test_over_rows.py",
    "cli/commands/test_telemetry.py",
    "spark/verification/test_verify_replaced_rows.py",
    "spark/formats/test_avro_beside_spark.py",
    "spark/test_topology_test_equality.py",
    "spark/runtime/batches/test_batch_runner.py",
    "docs/test_programs.py",
    "spark/runtime/test_failures_of_one_record.py",
    "spark/runtime/test_joins.py",
    "spark/runtime/test_application.py",
    "interop/test_markers_left_out.py",
    "spark/runtime/test_instance.py",
    "spark/test_protobuf_topics.py",
    "spark/test_kills.py",
    "spark/display/test_notebook.py",
    "spark/test_processor_equality.py",
    "spark/runtime/test_table_sinks.py",
    "interop/test_mixed_groups_on_kafka.py",
    "cli/commands/test_nexmark.py",
    "spark/test_spark_session.py",
    "spark/test_join_crashes.py",
    "durability/test_simulated_disk.py",
    "spark/test_table_join.py",
    "spark/runtime/test_stateful_processors.py",
    "testing/test_plugin.py",
    "packaging/test_distribution.py",
    "spark/runtime/slots/test_marker_bypass.py",
    "spark/runtime/test_record_tracing.py",
    "spark/runtime/test_state_troubles.py",
    "spark/test_running_app.py",
    "spark/test_bad_input.py",
    "interop/test_edited_programs_on_kafka.py",
    "spark/runtime/batches/test_driver_evaluation.py",
    "interop/test_storage_and_kafka.py",
    "spark/runtime/rows/test_row_schema.py",
    "spark/analysis/test_stream_union.py",
    "durability/test_soak.py",
    "interop/test_access_like_kafka.py",
    "spark/test_access_rules.py",
    "cli/commands/test_run.py",
    "spark/test_two_instances.py",
    "spark/runtime/test_moves.py",
    "spark/runtime/batches/test_job_runner.py",
    "spark/analysis/test_static_join.py",
    "packaging/test_installed_wheel.py",
    "spark/formats/test_json_decoding.py",
    "interop/test_java_consumers_on_our_broker.py",
    "interop/test_consumers_on_kafka.py",
    "interop/test_consumer_groups_like_kafka.py",
    "interop/test_access_tools.py",
    "interop/test_losses_like_kafka.py",
    "durability/test_crash.py",
    "fuzz/test_fuzz.py",
    "fuzz/test_request_cost.py",
    "simulator/test_simulation.py",
    "client/test_guardian.py",
)
"""The longest modules: started last, they would leave the other workers idle at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the expected output of transcripts anew")


@pytest.fixture
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether transcripts are written instead of compared."""
    return bool(pytestconfig.getoption("--rewrite"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind the shuffling; the order within a module stays as it was shuffled."""
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get("/".join(item.nodeid.partition("::")[0].split("/")[1:]), len(rank)))


class FailuresAtOnce:
    """A plugin that prints a failure when it happens: a run that is ended from outside prints no summary."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            last = report.longreprtext.rstrip().splitlines()[-30:]
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
            self._terminal.write_line("\n".join(last))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """In the run that prints, which is the controller of the workers."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate authority of the module and a server certificate for the loopback."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
