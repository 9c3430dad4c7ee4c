"""The names of all broker settings of Apache Kafka 4.3.1, as its own KafkaConfig.configDef lists them.

So that a server.properties that was made for Kafka can be told apart from a typing mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.settings import Kind, Setting, Value

__all__ = ["KAFKA_SETTING_NAMES", "SETTINGS_WITHOUT_EFFECT"]

_NAMES = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms advertised.listeners
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name auto.create.topics.enable
    auto.leader.rebalance.enable background.threads broker.heartbeat.interval.ms broker.id broker.rack
    broker.session.timeout.ms client.quota.callback.class compression.gzip.level compression.lz4.level
    compression.type compression.zstd.level config.providers connection.failed.authentication.delay.ms
    connections.max.idle.ms connections.max.reauth.ms controlled.shutdown.enable controller.listener.names
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
    controller.quorum.fetch.timeout.ms controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    controller.quorum.voters controller.quota.window.num controller.quota.window.size.seconds
    controller.socket.timeout.ms cordoned.log.dirs create.topic.policy.class.name default.replication.factor
    delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms delegation.token.max.lifetime.ms
    delegation.token.secret.key delete.records.purgatory.purge.interval.requests delete.topic.enable
    early.start.listeners fetch.max.bytes fetch.purgatory.purge.interval.requests
    follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms group.consumer.assignors
    group.consumer.heartbeat.interval.ms group.consumer.max.assignment.interval.ms
    group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms group.consumer.max.size
    group.consumer.migration.policy group.consumer.min.assignment.interval.ms
    group.consumer.min.heartbeat.interval.ms group.consumer.min.session.timeout.ms
    group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms
    group.coordinator.append.linger.ms group.coordinator.background.threads
    group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols group.coordinator.threads
    group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size group.min.session.timeout.ms
    group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
    group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
    group.share.session.timeout.ms group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
    group.streams.num.standby.replicas group.streams.session.timeout.ms initial.broker.registration.timeout.ms
    inter.broker.listener.name internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
    leader.imbalance.check.interval.seconds listener.security.protocol.map listeners log.cleaner.backoff.ms
    log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.enable
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms
    log.cleaner.threads log.cleanup.policy log.dir log.dir.failure.timeout.ms log.dirs
    log.flush.interval.messages log.flush.interval.ms log.flush.offset.checkpoint.interval.ms
    log.flush.scheduler.interval.ms log.flush.start.offset.checkpoint.interval.ms log.index.interval.bytes
    log.index.size.max.bytes log.initial.task.delay.ms log.local.retention.bytes log.local.retention.ms
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms log.message.timestamp.type
    log.preallocate log.retention.bytes log.retention.check.interval.ms log.retention.hours
    log.retention.minutes log.retention.ms log.roll.hours log.roll.jitter.hours log.roll.jitter.ms log.roll.ms
    log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate max.connections
    max.connections.per.ip max.connections.per.ip.overrides max.incremental.fetch.session.cache.slots
    max.request.partition.size.limit message.max.bytes metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
    metadata.max.retention.bytes metadata.max.retention.ms metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms min.insync.replicas node.id num.io.threads
    num.network.threads num.partitions num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
    num.replica.fetchers offset.metadata.max.bytes offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.compression.codec
    offsets.topic.num.partitions offsets.topic.replication.factor offsets.topic.segment.bytes
    principal.builder.class process.roles producer.id.expiration.check.interval.ms producer.id.expiration.ms
    producer.purgatory.purge.interval.requests queued.max.request.bytes queued.max.requests quota.window.num
    quota.window.size.seconds remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.index.file.cache.ttl.ms
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.expiration.thread.pool.size remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.follower.thread.pool.size remote.log.manager.task.interval.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks remote.log.reader.threads
    remote.log.storage.manager.class.name remote.log.storage.manager.class.path
    remote.log.storage.manager.impl.prefix remote.log.storage.system.enable replica.fetch.backoff.ms
    replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
    sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
    sasl.mechanism.inter.broker.protocol sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    sasl.server.callback.handler.class sasl.server.max.receive.size security.inter.broker.protocol
    security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.listen.backlog.size
    socket.receive.buffer.bytes socket.request.max.bytes socket.send.buffer.bytes ssl.allow.dn.changes
    ssl.allow.san.changes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms
    transaction.max.timeout.ms transaction.partition.verification.enable
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.num.partitions transaction.state.log.replication.factor
    transaction.state.log.segment.bytes transaction.two.phase.commit.enable transactional.id.expiration.ms
    unclean.leader.election.enable unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
"""

# In a server.properties a known name without a use is reported as such and any other as a probable typing mistake;
# neither keeps the broker from starting (`server_properties.py`).
KAFKA_SETTING_NAMES = frozenset(_NAMES.split())

# Settings that Apache Kafka 4.3.1 can change while it runs (as DescribeConfigs reports) and that steer parts this
# broker does not have: thread pools, tiered storage, Kerberos, Java's TLS engine. `sasl.jaas.config` is left out: a
# secret without a use is not stored.
_WITHOUT_EFFECT: tuple[tuple[str, Kind, Value | None], ...] = (
    ("background.threads", "int", 10),
    ("compression.gzip.level", "int", -1),
    ("compression.lz4.level", "int", 9),
    ("compression.zstd.level", "int", 3),
    ("config.providers", "list", ""),
    ("cordoned.log.dirs", "list", ""),
    ("follower.fetch.last.tiered.offset.enable", "boolean", False),
    ("log.cleaner.io.buffer.load.factor", "double", 0.9),
    ("log.cleaner.io.buffer.size", "int", 524_288),
    ("log.cleaner.io.max.bytes.per.second", "double", 1.7976931348623157e308),
    ("log.cleaner.threads", "int", 1),
    ("log.local.retention.bytes", "long", -2),
    ("log.local.retention.ms", "long", -2),
    ("log.roll.jitter.ms", "long", None),
    ("metric.reporters", "list", "org.apache.kafka.common.metrics.JmxReporter"),
    ("num.io.threads", "int", 8),
    ("num.network.threads", "int", 3),
    ("num.recovery.threads.per.data.dir", "int", 2),
    ("num.replica.fetchers", "int", 1),
    ("principal.builder.class", "class", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
    ("remote.fetch.max.wait.ms", "int", 500),
    ("remote.list.offsets.request.timeout.ms", "long", 30_000),
    ("remote.log.index.file.cache.total.size.bytes", "long", 1_073_741_824),
    ("remote.log.manager.copier.thread.pool.size", "int", 10),
    ("remote.log.manager.copy.max.bytes.per.second", "long", 2**63 - 1),
    ("remote.log.manager.expiration.thread.pool.size", "int", 10),
    ("remote.log.manager.fetch.max.bytes.per.second", "long", 2**63 - 1),
    ("remote.log.manager.follower.thread.pool.size", "int", 2),
    ("remote.log.reader.threads", "int", 10),
    ("sasl.kerberos.kinit.cmd", "string", "/usr/bin/kinit"),
    ("sasl.kerberos.min.time.before.relogin", "long", 60_000),
    ("sasl.kerberos.principal.to.local.rules", "list", "DEFAULT"),
    ("sasl.kerberos.service.name", "string", None),
    ("sasl.kerberos.ticket.renew.jitter", "double", 0.05),
    ("sasl.kerberos.ticket.renew.window.factor", "double", 0.8),
    ("sasl.login.refresh.buffer.seconds", "int", 300),
    ("sasl.login.refresh.min.period.seconds", "int", 60),
    ("sasl.login.refresh.window.factor", "double", 0.8),
    ("sasl.login.refresh.window.jitter", "double", 0.05),
    ("share.coordinator.cached.buffer.max.bytes", "int", 1_048_588),
    ("ssl.cipher.suites", "list", ""),
    ("ssl.endpoint.identification.algorithm", "string", "https"),
    ("ssl.engine.factory.class", "class", None),
    ("ssl.keymanager.algorithm", "string", "SunX509"),
    ("ssl.protocol", "string", "TLSv1.3"),
    ("ssl.provider", "string", None),
    ("ssl.secure.random.implementation", "string", None),
    ("ssl.trustmanager.algorithm", "string", "PKIX"),
)

SETTINGS_WITHOUT_EFFECT: Mapping[str, Setting] = MappingProxyType(
    {
        name: Setting(
            name=name,
            kind=kind,
            default=default,
            dynamic=True,
            internal=True,  # described only where it was set
            documentation="Kept for Kafka's tools; no effect on this broker.",
        )
        for name, kind, default in _WITHOUT_EFFECT
    }
)
"""Dynamic settings of Apache Kafka that are stored and described but change nothing here."""
