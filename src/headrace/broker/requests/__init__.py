"""Requests before their handlers: the table of APIs, the context of a request, bounds, quotas, error responses."""
