"""Builder of the documentation site: `make docs`."""
