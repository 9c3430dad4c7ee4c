"""The rules of the transaction coordinator, pure: state and request in, records and answers out."""
