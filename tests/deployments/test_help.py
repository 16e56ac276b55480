"""Help: short enough to read, complete with ``--help-all``, and no option that the command refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_group

from deployments.cli.entry_point import app, import_all
from deployments.cli.helping import first_sentence
from tasks.federation import protocol
from tests.support.command_line import CommandLine

_LINES, _COLUMNS = 100, 80
_OFF = """
--absent --against --aim --by --canaries --categories --cron --csv --dataset --deadline --disjoint-people --horizon --id
--image-shape --interval --kind --membership --missing --namespace --not-derived --numeric --out --output --pairs
--party --path --person --person-from --plot --public-dataset --raise-epsilon-cap --range-epsilon --reason --schema
--score-coverage --score-id --score-input --set --signer --sizes --soft-limit --sql --tune --why
"""
"""Options that do nothing unless they are given."""


def _walk(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, *before, name)
        else:
            yield (*before, name), command


def _commands() -> list[tuple[tuple[str, ...], Any]]:
    import_all()
    return list(_walk(get_group(app)))


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_help_can_be_read_and_help_all_is_complete(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(_COLUMNS))
    for words, command in _commands():
        shown, full = commands(*words, "--help").out, commands(*words, "--help-all").out
        lines = shown.splitlines()
        assert len(lines) <= _LINES, words
        assert max(map(len, lines)) <= _COLUMNS, words
        for option in (one for one in command.params if isinstance(one, TyperOption) and not one.hidden):
            assert all(flag in shown for flag in option.opts), (words, option.opts)
            assert option.help, (words, option.opts)
            assert _plain(option.help) in _plain(full), (words, option.opts)
        assert _plain(command.help or "-") in _plain(shown), "nothing of it is lost as markup"


def test_help_all_of_a_group_lists_its_commands(commands: CommandLine) -> None:
    import_all()
    everything = get_group(app)
    groups = {name: one for name, one in everything.commands.items() if isinstance(one, TyperGroup)}
    assert {"model", "schema"} <= groups.keys()
    for words, group in [((), everything), *(((name,), one) for name, one in groups.items())]:
        outcome = commands(*words, "--help-all")
        assert outcome.code == 0, words
        assert all(re.search(rf"^  {name} ", outcome.out, re.M) for name in group.commands), words


def test_every_default_is_in_the_help() -> None:
    """Options without a default value say what happens without them, or do nothing unless they are given."""
    silent = set()
    for words, command in _commands():
        context = command.context_class(command, info_name=words[-1])
        for one in command.params:
            if isinstance(one, TyperOption) and not (one.hidden or one.is_flag or one.required):
                _, text = one.get_help_record(context) or ("", "")
                if not re.search(r"default|required|without it", text, re.I):
                    assert one.default in (None, "", ()), (words, one.opts)
                    silent.add(one.opts[0])
    assert silent == set(_OFF.split())


def test_no_command_offers_what_it_refuses() -> None:
    flags = {words: {flag for one in command.params for flag in one.opts} for words, command in _commands()}
    refused = {"--" + name.replace("tuned_on", "on").replace("_", "-") for name in protocol.REFUSED_FIELDS}
    # Descriptions have groups.
    assert flags[("federate",)] & refused == {"--by"}
    assert refused <= flags[("train",)]
    assert {"--roc", "--aim"} & flags[("frontier",)] == set()


def test_what_a_command_shares_with_train_is_named_and_not_described_again(commands: CommandLine) -> None:
    for name in ("compare", "schedule", "federate", "frontier"):
        assert "--neighbours" in commands(name, "--help").out, name
        assert "Neighbouring relation" not in commands(name, "--help").out, name
        assert "Neighbouring relation" in commands(name, "--help-all").out, name


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One thing. And another.", "One thing."),
        ("Only one, of tls://host:8786", "Only one, of tls://host:8786"),
        ("Share, such as 0.9 of e.g. rows. Then (more).", "Share, such as 0.9 of e.g. rows."),
        ("Above. (≥ 0; default 5)", "Above."),
    ],
)
def test_the_first_sentence(text: str, first: str) -> None:
    assert first_sentence(text) == first
