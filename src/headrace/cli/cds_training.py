"""`headrace prepare` at work: a small application whose JVM writes the class data archive as it ends.

`python -m headrace.cli.cds_training DIRECTORY` is the application: it does what applications do, on a broker of its
own, with the example of the README. What the archive is and who uses it: `headrace.spark.cds_archive`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace import EmbeddedBroker
from headrace.child_process import python_module
from headrace.cli.application import configure_by_file, load_application
from headrace.cli.demo.environment import TOPIC, example_path, spark_environment
from headrace.errors import HeadraceError
from headrace.spark.cds_archive import SILENT

__all__ = ["make_archive", "train"]

# A few hundred records reach every operator of the example; more would take longer and load no further classes.
FLIGHTS = 400
# Bounds of a hang, not expectations: a training takes about as long as two starts of Spark. The JVM needs time after
# its last work, because it writes the archive (about 170 MB) while it exits.
TRAINING_S = 600
JVM_ENDS_WITHIN_S = 300


def make_archive(path: Path) -> None:
    """Make the archive at `path` (`archive_path`), which takes about as long as two starts of Spark.

    Others may use or make it meanwhile: it is written aside and moved into place. Raises HeadraceError("not-prepared").
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside the target, hence on the same file system: `replace` is atomic, and an application that starts
        # meanwhile maps the old archive or the new one, never a part. A JVM that has the old file mapped keeps its
        # inode.
        with tempfile.TemporaryDirectory(prefix=".training-", dir=path.parent) as scratch:
            made = Path(scratch, "classes.jsa")
            _train_apart(made, Path(scratch))
            made.replace(path)
    except OSError as error:
        raise _not_prepared(f"{path.parent}: {error}") from error


def _train_apart(archive: Path, scratch: Path) -> None:
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:ArchiveClassesAtExit={archive} {SILENT}"
    # An archive serves any compiler and collector, but cannot be made from one: to the training, the cache is empty.
    environment = spark_environment() | {
        "SPARK_SUBMIT_OPTS": options.strip(),
        "HEADRACE_CACHE_DIR": str(scratch),
        "PYTHONSAFEPATH": "1",  # for Spark's Python workers, which are started with `-m` in the working directory
    }
    training = subprocess.Popen(
        python_module("headrace.cli.cds_training", str(scratch)),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    with training:
        try:
            said, _ = training.communicate(timeout=TRAINING_S)
        except subprocess.TimeoutExpired as error:
            raise _not_prepared(f"the training did not end within {TRAINING_S} s") from error
        finally:
            # No effect after a normal end. After a timeout or a Ctrl-C the JVM follows, because its standard input
            # ends.
            training.kill()
    if training.returncode != 0 or not archive.exists():
        output = said.decode(errors="replace").strip()[-2000:]
        raise _not_prepared(f"the training ended with exit code {training.returncode} and this:\n{output}")


def _not_prepared(why: str) -> HeadraceError:
    return HeadraceError(
        "not-prepared",
        f"Spark's classes could not be archived: {why}",
        "applications run without, only start slower; HEADRACE_CACHE_DIR names another directory",
    )


def train(directory: Path) -> None:
    """A few hundred flights are counted, then recomputed as one batch; returns when the JVM has ended."""
    flights = [
        {"carrier": "UA", "origin": ("EWR", "JFK", "LGA")[n % 3], "dep_delay": float(n % 90), "distance": 100.0 + n}
        for n in range(FLIGHTS)
    ]
    with EmbeddedBroker(topics={TOPIC: 2}) as broker:
        broker.produce(TOPIC, [json.dumps(flight).encode() for flight in flights])
        app = load_application(str(example_path()))
        configure_by_file(app, bootstrap_servers=broker.bootstrap_servers, config_file=None)
        app.state_dir = directory / "state"
        app.run(until="caught-up")
        # The batch path of `verify` loads classes that the stream does not. Its result is checked although only the
        # classes matter: an archive of a run that went wrong would hide a broken installation until the first real
        # start.
        verdict = app.verify()
        if verdict.exit_code != 0:
            raise SystemExit(f"the training's results differ: {verdict}")
    _end_jvm()


def _end_jvm() -> None:
    """End the JVM by closing its input; it writes the archive then."""
    from pyspark import SparkContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        # `SparkContext.stop` ends Spark and leaves the JVM running, as py4j's gateway. -XX:ArchiveClassesAtExit writes
        # at the exit of the JVM, which follows the end of its standard input; waiting for it is the point of this
        # function.
        context.stop()
    if gateway is None:
        raise SystemExit("the training had no JVM of its own")
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_ENDS_WITHIN_S)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
