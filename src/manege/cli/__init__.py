"""The command line: parse, call, print, exit code.

Nothing heavy is imported before a verb needs it: `manege --help` must be instant.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import typer

from manege import job, processes
from manege.cli.flags import FLAGS
from manege.errors import EXIT_INPUT, EXIT_MACHINE, ManegeError, fields_named

EXIT_INTERRUPTED = 130


@fields_named(FLAGS)
def main() -> None:
    """Run the command; every problem becomes one line on standard error and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path need not be text; it is shown escaped, as standard error does.
        sys.stdout.reconfigure(errors="backslashreplace")
    job.run(_command)


def _command() -> int:
    """Run it and see to its last output; the exit code."""
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at its end, and complain in its own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code != EXIT_MACHINE and not isinstance(error, BrokenPipeError):
            _complain(f"standard output: {error.strerror}; the result is lost", code)
        code = EXIT_MACHINE
    return code


@fields_named(FLAGS)
def _run() -> int:
    try:
        code = _app()(standalone_mode=False, prog_name="manege")
    except ManegeError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):  # Typer leaves so when nobody reads any more.
        return EXIT_MACHINE
    except MemoryError:
        what = "out of memory; ask for fewer pictures, or a smaller --size or batch"
        return _complain(what, EXIT_MACHINE)
    except OSError as error:
        from manege.files import machine_error

        where = Path(os.fsdecode(error.filename)) if error.filename else Path("system")
        return _complain(str(machine_error(where, error)), EXIT_MACHINE)
    except Exception as error:
        # Typer's own complaints about usage; anything else is a defect and shows its traceback.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _usage(error, " ".join(format_message().split("\n")))
    if code == EXIT_INTERRUPTED:  # As Typer reports a KeyboardInterrupt inside a command.
        try:
            processes.check_threads(1)  # Without room for its threads OpenBLAS interrupts us.
        except ManegeError as error:
            return _complain(str(error), error.exit_code)
        return _complain("interrupted; what was finished is kept", EXIT_INTERRUPTED)
    return code if isinstance(code, int) else 0


def _app() -> typer.Typer:
    from manege.cli.app import app

    return app


def _complain(text: str, code: int) -> int:
    job.complain(text)
    return code


def _usage(error: Exception, text: str) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "manege"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(str(context.get_help() if context else text) + "\n")
        return EXIT_INPUT
    sys.stderr.write(f"{path}: {text.rstrip('.')}{_found(error)}; see `{path} --help`\n")
    return EXIT_INPUT


def _found(error: Exception) -> str:
    """What stood on the command line, where Typer says only what it should have been."""
    problems = getattr(error.__cause__, "errors", None)
    return f", found {problems()[0]['input']!r}" if callable(problems) else ""
