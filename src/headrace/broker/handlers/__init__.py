"""One file per API, named as the API. `handle(request, call, broker)` returns the answer, or an awaitable of it."""
