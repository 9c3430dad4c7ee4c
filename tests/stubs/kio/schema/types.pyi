# Names and ids of Kafka's messages, as plain Python types.

BrokerId = int
GroupId = str
ProducerId = int
TopicName = str
TransactionalId = str
