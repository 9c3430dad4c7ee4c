"""A member of a streams group (KIP-1071) without clock, chance or socket: `poll(now_ms)` in, requests out."""
