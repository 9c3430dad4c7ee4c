"""SASL exchanges as data in, data out; both sides use them. Pure: nonces and salts are arguments."""
