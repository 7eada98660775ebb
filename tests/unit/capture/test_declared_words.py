"""What a command of capture or real reads, the table of verbs declares: else it would be refused
before the command is loaded.
"""

from __future__ import annotations

from dataclasses import fields

from capture.fit import Training
from capture.importers.formats import FORMATS
from capture.recording.settings import Settings
from sim.study.launchers import OPTIONS
from sim.synthetic.synthesis import Request
from sim.verbs.table import verb_of


def declared(verb: str) -> set[str]:
    return {option.key for option in verb_of(verb).options}


def test_every_setting_that_a_command_reads_is_declared() -> None:
    assert {field.name for field in fields(Settings)} <= declared("capture")
    assert {field.name for field in fields(Training)} <= declared("capture fit")
    assert {field.name for field in fields(Request)} <= declared("synthesize")
    assert {key for keys in OPTIONS.values() for key in keys} <= declared("study")


def test_every_format_that_is_imported_is_declared() -> None:
    option = verb_of("import").option("format")
    assert option is not None
    assert set(FORMATS) <= set(option.values)
