"""Who may connect and as whom: listeners' TLS, SASL exchanges, SCRAM credentials, principals, access rules."""
