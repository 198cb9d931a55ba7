"""Write and read artifacts: directories, and single files, that are visible whole or not at all.

A directory is first written under a hidden name next to its final path. Its files are flushed to the disk, a manifest
with the size and the SHA-256 of every file is written last, and one rename makes the directory visible. Readers treat a
directory without a valid manifest as incomplete, and compare each file that they read with its hash. All packages write
artifacts through `store`.
"""

from albert_cli.os_errors import free_bytes, no_directory_message, translate_os_errors
from albert_cli.store.directories import commit_directory, publish, remove_directory, resolve_dots, walk_folders
from albert_cli.store.files import open_text_writer, write_bytes, write_json, write_text
from albert_cli.store.locks import is_locked, lock
from albert_cli.store.manifests import (
    MANIFEST,
    Manifest,
    ManifestEntry,
    fingerprint,
    hash_json,
    read_finished_manifest,
    read_manifest,
    seal,
    sha256_file,
    verify,
)
from albert_cli.store.parsing import check_relative, require_keys, type_adapter
from albert_cli.store.records import (
    JsonObject,
    exists_or_is_listed,
    read_bytes,
    read_json,
    read_optional_record,
    read_record,
    read_toml,
)
from albert_cli.store.run_steps import saved_steps, step_directories, step_number
from albert_cli.store.temporaries import remove_leftovers

__all__ = [
    "MANIFEST",
    "JsonObject",
    "Manifest",
    "ManifestEntry",
    "check_relative",
    "commit_directory",
    "exists_or_is_listed",
    "fingerprint",
    "free_bytes",
    "hash_json",
    "is_locked",
    "lock",
    "no_directory_message",
    "open_text_writer",
    "publish",
    "read_bytes",
    "read_finished_manifest",
    "read_json",
    "read_manifest",
    "read_optional_record",
    "read_record",
    "read_toml",
    "remove_directory",
    "remove_leftovers",
    "require_keys",
    "resolve_dots",
    "saved_steps",
    "seal",
    "sha256_file",
    "step_directories",
    "step_number",
    "translate_os_errors",
    "type_adapter",
    "verify",
    "walk_folders",
    "write_bytes",
    "write_json",
    "write_text",
]
