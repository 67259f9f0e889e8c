"""The ``rooflens`` command. Commands are imported when called, so that each starts fast."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from rooflens import __version__
from rooflens.errors import InputError, RooflensError

# name -> one line for `rooflens --help`; the module cli.<name> has the command under the same name.
COMMANDS: dict[str, str] = {
    "plan": "Memory, limits and estimate of a model on a device.",
    "inspect": "Parameters, bytes and KV cache of a model.",
    "devices": "The device catalogue, and one device in detail.",
    "compare": "Several devices or weight formats side by side.",
    "sweep": "Decode over batch or context: the knee and its cause.",
    "roofline": "Attainable rate and regime of given intensities.",
    "search": "Devices, layouts and formats that meet a rate and latencies.",
    "validate": "Check measurements against the bound and the estimate.",
    "calibrate": "Tighten the estimate by your own measured runs.",
    "probe": "Measure the real roofline of this machine.",
    "run": "Run a model here and account for the time.",
    "bench": "Measure grids of requests on this machine.",
    "serve": "Serve a model with an OpenAI-compatible API.",
    "doctor": "What is installed, detected and measured here.",
    "web": "The interactive page, on this machine.",
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"rooflens.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest commands for an unknown name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            raise InputError(
                "there is no such command",
                value=name,
                allowed=", ".join(COMMANDS),
                next=f"did you mean 'rooflens {near[0]}'?" if near else None,
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Shell completion: eval "$(_ROOFLENS_COMPLETE=bash_source rooflens)" (zsh_source, fish_source).',
)
@click.version_option(__version__, prog_name="rooflens")
def cli() -> None:
    """How fast could a language model go, how fast does it go, and what is in the way."""


def report_error(error: RooflensError, *, as_json: bool) -> int:
    """Print an error to stderr, as one sentence or as JSON; returns the exit code."""
    text = json.dumps(error.to_dict(), ensure_ascii=False) if as_json else f"error: {error}"
    print(text, file=sys.stderr)
    return error.exit_code


def _from_click(error: click.ClickException) -> RooflensError:
    """Click's own complaints (unknown option, missing argument) in the form of ours."""
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "rooflens"
    return InputError(error.format_message().rstrip("."), next=f"`{where} --help` lists the options")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 a result that says no, 2 bad input."""
    arguments = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in arguments
    try:
        code = cli.main(args=arguments, prog_name="rooflens", standalone_mode=False)
    except RooflensError as error:
        code = report_error(error, as_json=as_json)
    except click.exceptions.Abort:
        print("interrupted", file=sys.stderr)
        code = 130
    except click.ClickException as error:
        code = report_error(_from_click(error), as_json=as_json)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing is wrong, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
