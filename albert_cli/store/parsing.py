"""Parse JSON as typed records by pydantic's strict rules, with errors that name the file and the key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from albert_cli.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
# Matches JSON that may contain a number that is not finite: `NaN` or `Infinity`, even inside a string, or a number that
# may exceed the largest float, because its exponent has two digits or it has 300 digits.
_NONFINITE_CANDIDATE: Final = re.compile(rb"NaN|Infinity|[\s:,\[]-?(?:[0-9][0-9.]*[eE]\+?[0-9]{2}|[0-9]{300})")


def type_adapter(record_type: type[T]) -> TypeAdapter[T]:
    """Return pydantic's validator of a type, built once per process."""
    # `cache` requires a hashable argument and forgets T, so mypy needs the casts.
    return cast("TypeAdapter[T]", _cached_adapter(cast(Hashable, record_type)))


@cache
def _cached_adapter(record_type: Hashable) -> TypeAdapter[object]:
    from pydantic import TypeAdapter  # imported late, because a command that reads no record needs no pydantic

    return TypeAdapter(cast("type[object]", record_type))


def parse_record(path: Path, data: bytes, record_type: type[T]) -> T:
    """Parse the JSON of a file as a record.

    Raises `CheckpointError` for a key that is missing or of another type, for a value that the record's class rejects,
    and for a number that is not finite: the constants NaN and Infinity, and numbers such as 1e999.
    """
    from pydantic import ValidationError

    try:
        record = type_adapter(record_type).validate_json(data, strict=True)
    except ValidationError as error:
        raise invalid_record_error(path, error) from None
    except ConfigError as error:  # raised by a settings class in the record
        raise CheckpointError(f"{path}: {error.message}") from None
    if _NONFINITE_CANDIDATE.search(data):
        _reject_nonfinite_numbers(path, data)
    return record


def _reject_nonfinite_numbers(path: Path, data: bytes) -> None:
    """Raise `CheckpointError` if JSON contains a number that is not finite, which pydantic accepts."""

    def reject_constant(constant: str) -> None:
        raise CheckpointError(f"{path}: contains {constant}, which is not valid JSON")

    def reject_overflow(number: str) -> None:
        if not math.isfinite(float(number)):
            raise CheckpointError(f"{path}: contains {number[:20]}, which is larger than any float")

    with suppress(RecursionError):  # pydantic accepts deeper nesting, and then the numbers are not checked
        json.loads(data, parse_constant=reject_constant, parse_float=reject_overflow, parse_int=reject_overflow)


def invalid_record_error(path: Path, error: ValidationError) -> CheckpointError:
    """Return the error of a file with an invalid record: one line with the file, the key and the reason.

    If pydantic lists several errors, the line reports the first.
    """
    first = error.errors()[0]
    message = first["msg"]
    reason = first.get("ctx", {}).get("error")
    if first["type"] == "json_invalid":
        message = f"not valid JSON ({reason})"
    elif first["type"] == "value_error":  # a ValueError of this package, such as that of `check_relative`
        message = str(reason)
    elif first["type"] != "missing":
        message += f", not {repr(first['input'])[:40]}"
    key = ".".join(map(str, first["loc"]))[:100]
    return CheckpointError(f"{path}: {key}: {message}" if key else f"{path}: {message}")


def require_keys(*names: str) -> Callable[[dict[str, T]], dict[str, T]]:
    """Return a pydantic validator that accepts a mapping only if it has all of these keys."""

    def check(value: dict[str, T]) -> dict[str, T]:
        missing = [name for name in names if name not in value]
        if missing:
            raise ValueError(f"no key {missing[0]!r}")
        return value

    return check


def check_relative(name: str) -> str:
    """Return a relative path unchanged; raise `ValueError` if it is absolute or leads out of its directory."""
    # This check does not use `pathlib`, which would take most of the time of reading a record of thousands of shards.
    has_drive = name[1:2] == ":"
    is_absolute = name.startswith(("/", "\\")) or has_drive
    leads_up = ".." in name.replace("\\", "/").split("/")
    if not name or is_absolute or leads_up or "\0" in name:
        raise ValueError(f"{name}: leads out of this directory")
    return name
