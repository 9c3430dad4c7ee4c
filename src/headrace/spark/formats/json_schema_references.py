"""JSON Schemas that refer to other documents of a registry, as one document.

A reference of the registry has a name, which is the part of a `$ref` in front of `#`; JSON Schema resolves it against
the `$id` of its document. The other documents become definitions of the first one, and references point into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urljoin

__all__ = ["bundle_references"]

# Not a keyword, so that it cannot be one of the document's own.
_DOCUMENTS: Final = "headrace.documents"


def bundle_references(text: str, documents: Mapping[str, str]) -> str:
    """Return a schema, as JSON, in which references to `documents` point to copies within it.

    A reference to a document that is not there stays as it is.

    Args:
        text: The schema.
        documents: Texts of the schemas that it refers to, directly or through others, by the names of its references.

    Raises:
        ValueError: for a text that is not JSON.
    """
    main = json.loads(text)
    if not isinstance(main, dict):
        return text
    names = frozenset(documents)
    bundled = _rewritten(main, "#", str(main.get("$id", "")), names)
    copies = {}
    for name, document in documents.items():
        parsed = json.loads(document)
        base = str(parsed.get("$id", name)) if isinstance(parsed, dict) else name
        copies[name] = _rewritten(parsed, _pointer_to(name), base, names)
    return json.dumps({**bundled, _DOCUMENTS: copies})


def _pointer_to(name: str) -> str:
    return f"#/{_DOCUMENTS}/{name.replace('~', '~0').replace('/', '~1')}"


def _rewritten(schema: Any, root: str, base: str, names: frozenset[str]) -> Any:
    """Return a part of a document with its references rewritten.

    Args:
        schema: The part.
        root: The place of its document in the bundle, as a JSON pointer.
        base: The URL of its document.
        names: The names of all other documents.
    """
    if isinstance(schema, list):
        return [_rewritten(each, root, base, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _rewritten(each, root, base, names) for name, each in schema.items()}
    if isinstance(schema.get("$ref"), str):
        found["$ref"] = _target(schema["$ref"], root, base, names)
    return found


def _target(reference: str, root: str, base: str, names: frozenset[str]) -> str:
    document, _, pointer = reference.partition("#")
    if not document:
        place = root
    else:
        name = next((one for one in (document, urljoin(base, document)) if one in names), None)
        if name is None:
            return reference
        place = _pointer_to(name)
    # An anchor (`#item`) is no pointer, and stays what it was: it is refused when columns are made.
    if pointer and not pointer.startswith("/"):
        return reference
    return place + pointer
