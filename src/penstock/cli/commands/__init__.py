"""One file per command; `penstock.cli.command_table` names them, and nothing is imported before it is asked for."""
