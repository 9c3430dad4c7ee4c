"""Rows as bytes: the layout of keys and values in repartition topics, changelog topics and stores."""
