"""The command line: thin. Parse, call, print; the other rooms do the work."""
