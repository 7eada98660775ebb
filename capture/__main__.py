"""The command that records a model's routing as a trace.

``python -m capture model=DIR prompts=FILE output_dir=DIR [key=value ...]``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from capture.recording.prompts import prompts_file, read_prompts
from capture.recording.settings import parse_settings
from sim.process.interrupts import telling
from sim.results.folders import check_can_be_made


@telling("finished sequences are kept, and the same command goes on from there")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when the input is wrong."""
    try:
        settings = parse_settings(arguments)
        check_can_be_made(settings.output_dir)
        read_prompts(prompts_file(settings.prompts))
        # Late: loading torch and transformers takes longer than to refuse a setting or a prompt.
        from capture.recording.capturing import capture

        capture(settings, arguments, Console())
    except (ValueError, OSError) as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
