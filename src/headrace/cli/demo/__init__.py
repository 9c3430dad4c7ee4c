"""`headrace demo`: the main job on real data, with a kill in the middle and a proof at the end."""
