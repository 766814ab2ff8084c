"""Published schemas of resources, as an API server of the tests holds to them."""

import copy
from typing import Any

type Json = dict[str, Any]


def strict(schema: Any) -> Any:
    """Return a schema that refuses what it does not know, in place of forgetting it."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: {name: strict(one) for name, one in value.items()}
        if key == "properties"
        else strict(value)
        for key, value in schema.items()
    }
    if "properties" in found and "type" in found and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found


def set_defaults(schema: Json, obj: Any) -> None:
    """Give an object what its schema says of what it leaves out."""
    if isinstance(obj, list) and "items" in schema:
        for one in obj:
            set_defaults(schema["items"], one)
    if isinstance(obj, dict):
        for name, one in schema.get("properties", {}).items():
            if name not in obj and "default" in one:
                obj[name] = copy.deepcopy(one["default"])
            if name in obj:
                set_defaults(one, obj[name])
