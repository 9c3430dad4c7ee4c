"""Kafka's tools, a Java client and confluent-kafka on listeners of every kind at once, with access rules in force.

One broker: PLAINTEXT (nobody in particular), SASL_SSL (users with SCRAM) and MUTUAL (TLS whose certificate says who).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from tests.cli.command_lines import headrace_process
from tests.harness.certificates import Certificates
from tests.harness.values import not_none
from tests.interop.kafka_jars import TOOLS_VERSION, java, kafka_jars
from tests.interop.kafka_tools import TOPICS, ToolServer

from headrace.broker.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.foreign, pytest.mark.slow]

ACLS, CONFIGS = "org.apache.kafka.tools.AclCommand", "kafka.admin.ConfigCommand"
CONSUMER, PRODUCER = "org.apache.kafka.tools.consumer.ConsoleConsumer", "org.apache.kafka.tools.ConsoleProducer"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,MUTUAL:SSL",
        "ssl.keystore.location": str(certificates.server),
        "ssl.truststore.location": str(certificates.authority),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([^,]+),OU=apps,.*$/$1/L,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with EmbeddedBroker(config=config) as running:
        running.add_scram_users(["SCRAM-SHA-512=[name=admin,password=pw-admin]"])
        yield running


@pytest.fixture(scope="module")
def files(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Client settings in Kafka's properties format: `admin`, `dave` (SCRAM), `billing` (a certificate)."""
    directory = tmp_path_factory.mktemp("clients")
    trusted = f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
    texts = {
        user: "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n" + trusted + "sasl.jaas.config="
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{user}" password="pw-{user}";\n'
        for user in ("admin", "dave")
    }
    pem = certificates.issue("billing", "/O=Flights/OU=apps/CN=Billing")
    keys = f"ssl.keystore.type=PEM\nssl.keystore.location={pem}\n"
    texts["billing"] = "security.protocol=SSL\n" + trusted + keys
    for name, text in texts.items():
        (directory / f"{name}.properties").write_text(text)
    return {name: directory / f"{name}.properties" for name in texts}


@pytest.fixture(scope="module")
def prepared(tools: ToolServer, broker: EmbeddedBroker, files: dict[str, Path]) -> str:
    """An administrator's work by Kafka's tools over SASL_SSL: a topic, a user, rules. The listener's address."""
    secured = f"127.0.0.1:{broker.ports['SASL_SSL']}"
    at = ("--bootstrap-server", secured, "--command-config", str(files["admin"]))
    for tool, arguments in (
        (TOPICS, ("--create", "--topic", "bills", "--partitions", "1")),
        (TOPICS, ("--create", "--topic", "notes", "--partitions", "1")),
        (TOPICS, ("--create", "--topic", "others", "--partitions", "1")),
        (CONFIGS, ("--alter", "--entity-type", "users", "--entity-name", "dave", "--add-config",
                   "SCRAM-SHA-512=[iterations=4096,password=pw-dave]")),
        (ACLS, ("--add", "--allow-principal", "User:dave", "--producer", "--topic", "notes")),
        (ACLS, ("--add", "--allow-principal", "User:dave", "--operation", "Read", "--topic", "notes")),
        (ACLS, ("--add", "--allow-principal", "User:billing", "--producer", "--topic", "bills")),
    ):  # fmt: skip
        done = tools.run(tool, *at, *arguments)
        assert done.code == 0, (tool, arguments, done)
    told = tools.run(ACLS, *at, "--list", "--topic", "bills").out
    assert "principal=User:billing, host=*, operation=WRITE, permissionType=ALLOW" in told
    return secured


def test_kafkas_console_tools_over_sasl_ssl(
    tools: ToolServer, broker: EmbeddedBroker, prepared: str, files: dict[str, Path]
) -> None:
    as_dave = ("--bootstrap-server", prepared, "--command-config", str(files["dave"]))
    command = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars(TOOLS_VERSION)}/*", PRODUCER]
    written = subprocess.run(
        [*command, *as_dave, "--topic", "notes"], input="one\ntwo\n", capture_output=True, text=True, timeout=120
    )
    assert written.returncode == 0, written.stderr
    read = tools.run(
        CONSUMER, *as_dave, "--topic", "notes", "--partition", "0", "--from-beginning", "--max-messages", "2"
    )
    assert read.out.splitlines() == ["one", "two"], read.err
    listed = tools.run(TOPICS, *as_dave, "--list")
    assert listed.out.split() == ["notes"]  # what dave may not see is not there
    # Ours does the same with the same file.
    ours = headrace_process("console-producer", *as_dave, "--topic", "notes", given="three\n")
    assert ours.code == 0, ours.err
    ours = headrace_process("console-consumer", *as_dave, "--topic", "notes", "--from-beginning", "--max-messages", "3")
    assert (ours.code, ours.out.split()) == (0, ["one", "two", "three"]), ours.err
    refused = headrace_process("console-producer", *as_dave, "--topic", "others", given="x\n")
    assert refused.code != 0
    assert "others" in refused.err
    assert "pw-dave" not in refused.err


def test_the_principal_of_a_java_client_is_that_of_its_certificate(
    tools: ToolServer, broker: EmbeddedBroker, prepared: str, files: dict[str, Path]
) -> None:
    mutual = f"127.0.0.1:{broker.ports['MUTUAL']}"
    few = ("--num-records", "7", "--record-size", "10", "--throughput", "-1", "--bootstrap-server", mutual)
    billing = ("--command-config", str(files["billing"]))
    before = len(broker.records("bills"))
    allowed = tools.run(PERFORMANCE, *few, *billing, "--topic", "bills")
    assert "7 records sent" in allowed.out, allowed.err
    assert len(broker.records("bills")) == before + 7
    denied = tools.run(PERFORMANCE, *few, *billing, "--topic", "others")
    assert "TopicAuthorizationException" in denied.out + denied.err
    assert broker.records("others") == []


def test_confluent_kafka_with_a_certificate(broker: EmbeddedBroker, prepared: str, certificates: Certificates) -> None:
    pem = str(certificates.directory / "billing.pem")
    told: dict[str, int | None] = {}
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.ports['MUTUAL']}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.authority),
            "ssl.certificate.location": pem,
            "ssl.key.location": pem,
        }
    )

    def on_delivery(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        told[not_none(message.topic())] = None if error is None else error.code()

    for topic in ("bills", "others"):
        producer.produce(topic, b"x", callback=on_delivery)
    assert producer.flush(60) == 0
    assert told == {"bills": None, "others": KafkaError.TOPIC_AUTHORIZATION_FAILED}


def test_a_client_without_a_login_on_the_plain_listener_is_anonymous(
    tools: ToolServer, broker: EmbeddedBroker, prepared: str
) -> None:
    plain = f"127.0.0.1:{broker.ports['PLAINTEXT']}"
    assert tools.run(TOPICS, "--bootstrap-server", plain, "--list").out.split() == []
    refused = tools.run(TOPICS, "--bootstrap-server", plain, "--create", "--topic", "mine")
    assert refused.code != 0
    assert "Authorization failed" in refused.out + refused.err
