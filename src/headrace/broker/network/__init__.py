"""Connections: listeners, sockets, frames, back pressure, and the answers that one connection may be given again."""
