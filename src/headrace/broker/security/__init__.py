"""Authentication and authorization: listeners' TLS, SASL exchanges, SCRAM credentials, principals, access rules."""
