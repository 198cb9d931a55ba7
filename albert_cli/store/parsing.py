"""Read JSON as typed records, strictly, and name the file and the key that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from albert_cli.errors import CheckpointError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def type_adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return pydantic's validator of a type; it is built once."""
    return cast("TypeAdapter[T]", _cached_adapter(cast(Hashable, kind)))


@cache
def _cached_adapter(kind: Hashable) -> TypeAdapter[object]:
    from pydantic import TypeAdapter  # late: reading no record needs no pydantic

    return TypeAdapter(cast("type[object]", kind))


def parse_record(path: Path, data: bytes, kind: type[T]) -> T:
    """Parse JSON as a record; raise a `CheckpointError` that names what is missing or of another type."""
    from pydantic import ValidationError

    try:
        return type_adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        raise invalid_record_error(path, error) from None


def invalid_record_error(path: Path, error: ValidationError) -> CheckpointError:
    """Translate the first of pydantic's findings into one line."""
    first = error.errors()[0]
    message = first["msg"]
    reason = first.get("ctx", {}).get("error")
    if first["type"] == "json_invalid":
        message = f"not valid JSON ({reason})"
    elif first["type"] == "value_error":  # raised by a check of ours
        message = str(reason)
    elif first["type"] != "missing":
        message += f", not {repr(first['input'])[:40]}"
    key = ".".join(map(str, first["loc"]))[:100]
    return CheckpointError(": ".join(filter(None, (str(path), key, message))))


def require_keys(*names: str) -> Callable[[dict[str, T]], dict[str, T]]:
    """Return a validator of a mapping that has these keys."""

    def check(value: dict[str, T]) -> dict[str, T]:
        missing = [name for name in names if name not in value]
        if missing:
            raise ValueError(f"no key {missing[0]!r}")
        return value

    return check


def check_relative(name: str) -> str:
    """Return a path that stays below its directory; raise `ValueError` for any other."""
    # No `pathlib`: it would take most of the time when the thousands of shards of a large corpus are opened.
    is_absolute = name.startswith(("/", "\\")) or name[1:2] == ":"
    if not name or is_absolute or ".." in name.replace("\\", "/").split("/") or "\0" in name:
        raise ValueError(f"{name}: leads out of this directory")
    return name
