"""`headrace capacity`: what an application of a given size needs of Spark and Kafka. Connects to nothing."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.options import json_option
from headrace.cli.terminal import align, data, print_json
from headrace.simulator.capacity_model import OPERATORS, TARGET_LOAD, Capacity, Workload, estimate, read_unit_costs

__all__ = ["command", "table"]


@click.command("capacity")
@click.option("--instances", type=click.IntRange(1), default=1_000, show_default=True, help="Processes.")
@click.option("--tasks", type=click.IntRange(1), default=10_000, show_default=True, help="Partitions of the source.")
@click.option("--records-per-s", type=click.IntRange(0), default=10_000_000, show_default=True, help="Source records.")
@click.option("--cores", type=click.IntRange(1), default=4, show_default=True, help="Cores of each instance.")
@click.option("--keys", type=click.IntRange(1), default=1_000_000_000, show_default=True, help="Keys of all stores.")
@click.option("--record-bytes", type=click.IntRange(1), default=100, show_default=True, help="Size of a record.")
@click.option("--operator", type=click.Choice(OPERATORS), default=OPERATORS[-1], show_default=True, help="Its work.")
@click.option("--cycle-ms", type=click.IntRange(1), default=1_000, show_default=True, help="Between micro-batches.")
@click.option("--standbys", type=click.IntRange(0), default=1, show_default=True, help="Standby copies of a task.")
@click.option("--brokers", type=click.IntRange(1), default=30, show_default=True, help="Brokers of the cluster.")
@click.option("--at-least-once", is_flag=True, help="Without transactions.")
@click.option(
    "--unit-costs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Figures of benchmarks/unit_costs.py from your own machine.",
)
@json_option
def command(
    instances: int,
    tasks: int,
    records_per_s: int,
    cores: int,
    keys: int,
    record_bytes: int,
    operator: str,
    cycle_ms: int,
    standbys: int,
    brokers: int,
    at_least_once: bool,
    unit_costs: Path | None,
    as_json: bool,
) -> None:
    """Estimate what an application needs of Spark and Kafka, and what reaches its limit first.

    The estimate multiplies the workload by measured unit costs. It does not know your SQL: measure it with
    benchmarks/unit_costs.py, or plan with headroom.

    \b
      headrace capacity --instances 20 --tasks 200 --records-per-s 500000 --keys 10000000
    """
    import json

    workload = Workload(
        instances=instances,
        tasks=tasks,
        records_per_s=records_per_s,
        cores=cores,
        keys=keys,
        record_bytes=record_bytes,
        operator=operator,
        cycle_ms=cycle_ms,
        standbys=standbys,
        brokers=brokers,
        exactly_once=not at_least_once,
    )
    try:
        # The figures of the package come from one machine; `--unit-costs` replaces all of them, since single ones of
        # different machines cannot be combined.
        costs = read_unit_costs(None if unit_costs is None else json.loads(unit_costs.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"{unit_costs} is not a file of unit costs ({error!r}). Write one: benchmarks/unit_costs.py > FILE",
            param_hint="--unit-costs",
        ) from error
    found = estimate(workload, costs)
    if as_json:
        print_json(
            {
                "spark": dict(found.spark),
                "kafka": dict(found.kafka),
                "transactions": {
                    name: {"perSlot": slot, "perTask": task} for name, (slot, task) in found.transactions.items()
                },
                "limits": [{"resource": each.resource, "load": each.load, "fix": each.remedy} for each in found.limits],
                "instancesForTarget": found.instances_for_target,
            }
        )
        return
    for line in table(found, exactly_once=workload.exactly_once):
        data(line)


def table(found: Capacity, *, exactly_once: bool = True) -> list[str]:
    """Return the lines of the estimate."""
    lines = ["Spark", *align([[name, number(value)] for name, value in found.spark.items()], indent="  ")]
    lines += ["", "Kafka", *align([[name, number(value)] for name, value in found.kafka.items()], indent="  ")]
    if exactly_once:
        rows = [["", "per slot (as it is)", "per task"]]
        rows += [[name, number(slot), number(task)] for name, (slot, task) in found.transactions.items()]
        lines += ["", "Transactions", *align(rows, indent="  ")]
    rows = [[f"{limit.load:.0%}", limit.resource, limit.remedy] for limit in found.limits]
    lines += ["", "Limits, the first to be reached first", *align(rows, indent="  ")]
    if found.instances_for_target:
        lines += ["", f"Instances of this size for a load of {TARGET_LOAD:.0%}: {found.instances_for_target:,}"]
    else:
        lines += ["", "The cycles alone need more than these cores: use more cores or a longer --cycle-ms."]
    return lines


def number(value: float) -> str:
    """Return a number as people write it: three digits that count."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
