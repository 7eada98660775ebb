"""What the words of a command line say, for the commands that take no Hydra configuration.

Nothing but Python's own library is imported: a command that tells of absent packages reads its
words with this, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def words_of(arguments: Iterable[str], known: Collection[str], refusal: str) -> dict[str, str]:
    """The values of KEY=VALUE words, by key. Of several words for one key the last counts.

    Raise ValueError for the first word that is no KEY=VALUE, has no value, or has a key that is not
    known. The message is the word and ``refusal``.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not text or key not in known:
            raise ValueError(f"{argument!r} {refusal}")
        given[key] = text
    return given
