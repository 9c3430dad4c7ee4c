"""`Consumer` and `AsyncConsumer`: subscribe or assign, poll, commit. Kafka's semantics under Kafka's names.

`consumer` and `async_consumer` are the public classes, `consumer_core` one turn of `poll`. The state machines of the
group protocols are in `headrace.client.membership`.
"""
