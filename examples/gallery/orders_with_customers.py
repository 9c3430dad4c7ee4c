"""Orders with the names of their customers. Both sides are kept, so either may come first."""

from headrace import StreamsApp

app = StreamsApp("orders-with-customers")
orders = app.stream("orders", schema="order string, customer string, amount double")
customers = app.stream("customers", schema="customer string, name string")

orders.join(customers, "customer").to_topic("named-orders", key="order", partitions=4)

if __name__ == "__main__":
    app.run()
