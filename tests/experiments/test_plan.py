from __future__ import annotations

from albert_cli.experiments.plan import Stage


def test_stage_command_has_no_secrets_of_urls() -> None:
    argv = ("data", "https://reader:SECRET@host/a.txt?token=SECRET", "--out", "out")
    stage = Stage("data", "token shards", {"text": argv[1:2]}, argv=argv)
    assert stage.command == "albert data 'https://host/a.txt?token=…' --out out"
    assert stage.argv == argv
