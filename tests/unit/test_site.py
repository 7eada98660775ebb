"""The site's generated pages have what the program has, and words of the glossary are links."""

from __future__ import annotations

import re

import yaml

from helpers.site import site_glossary, site_reference
from sim.results.metrics import SCHEMA
from sim.values.places import ROOT
from sim.verbs.names import names
from sim.verbs.table import VERBS

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SMALL = "| word | meaning |\n|---|---|\n| late, promoted | a need |\n| need | an expert |\n"


def test_every_verb_and_option_is_on_the_page_of_commands() -> None:
    page = site_reference.commands()
    parts = dict(re.findall(r"^### moelab (.+?)$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(parts) == [verb.name for verb in VERBS]
    for verb in VERBS:
        assert all(f"`{option.key}" in parts[verb.name] for option in verb.options)
        assert all(f"moelab {example}" in parts[verb.name] for example in verb.examples)


def test_every_file_of_conf_is_on_the_page_of_choices() -> None:
    page = site_reference.choices()
    for group in ("system", "hardware", "model", "trace", "workload", "cache", "predictor"):
        assert [name for name in names(group) if f" {name} |" not in page] == []


def test_every_key_of_a_summary_and_every_column_is_told() -> None:
    keys, files = site_reference.keys(), site_reference.files()
    told = set(re.findall(r"^\| `([\w.]+)` \|", keys, re.MULTILINE))
    summary = site_reference.small_run().summary
    assert summary["schema"] == SCHEMA
    assert {
        key for key in summary if not any(t == key or t.startswith(f"{key}.") for t in told)
    } <= {
        "prediction",
        "ram",
    }
    assert all(f"## {name}.parquet" in files for name in site_reference.TABLES)
    for name in site_reference.small_run().lookups.columns:
        assert f"| `{name}` |" in files


def test_a_word_of_the_glossary_is_a_link_where_a_page_first_has_it() -> None:
    page = "# A need\n\nNo `need` of a Need is [need](x); needs are many.\n\n| need |\n"
    link = "[Need](glossary.md#word-need)"
    assert site_glossary.linked(page, SMALL, "glossary.md") == page.replace("Need", link)
    both = site_glossary.linked("late or promoted", SMALL, "g.md")
    assert both == "[late](g.md#word-late) or promoted"


def test_every_link_to_the_glossary_has_a_place() -> None:
    places = set(re.findall(r'<a id="([^"]+)"', site_glossary.anchored(GLOSSARY)))
    assert places == set(site_glossary.terms(GLOSSARY).values())
    assert len(places) == GLOSSARY.count("\n| ") - 1


def test_documentation_has_versions() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert site["extra"]["version"]["provider"] == "mike"
    assert "mike" in site["plugins"]
