"""`headrace telemetry`: what clients push, by group and team. See `headrace.cli.telemetry.application`."""
