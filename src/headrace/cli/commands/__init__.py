"""One file per command; `headrace.cli.command_table` names them, and nothing is imported before it is asked for."""
