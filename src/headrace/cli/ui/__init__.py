"""Web page of a cluster: `headrace ui`.

Snapshots of the exporter's collection, series over time, JSON documents per screen, and the server with its access
rules. The browser's part is in `pages`: hand-written HTML, CSS and JavaScript without a build step.
"""
