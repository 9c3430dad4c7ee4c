"""Metadata of the cluster: topics and their administration, finalised features."""
