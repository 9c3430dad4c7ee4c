"""Recordings of real terminal sessions and notebooks, as the pictures in docs/pictures: `make recordings`."""
