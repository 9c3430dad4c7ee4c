"""The command line: parse arguments, call the other packages, print. No rule of a broker or client is made here."""
