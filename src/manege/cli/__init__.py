"""The command line: parse, call, print, exit code.

Nothing heavy is imported before a verb needs it: `manege --help` must be instant.
"""

from __future__ import annotations

import sys

import typer

from manege.errors import EXIT_INPUT, EXIT_MACHINE, ManegeError

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command; every problem becomes one line on standard error and an exit code."""
    sys.exit(_run())


def _run() -> int:
    try:
        code = _app()(standalone_mode=False)
    except ManegeError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted before there was anything to save", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return EXIT_MACHINE
    except MemoryError:
        return _complain("out of memory; use a smaller --size or batch", EXIT_MACHINE)
    except OSError as error:
        return _complain(f"{error.filename or 'system'}: {error.strerror}", EXIT_MACHINE)
    except Exception as error:
        # Typer's own complaints about usage; anything else is a defect and shows its traceback.
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        return _usage(error, " ".join(format_message().split("\n")))
    return code if isinstance(code, int) else 0


def _app() -> typer.Typer:
    from manege.cli.app import app

    return app


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"manege: {text}\n")
    return code


def _usage(error: Exception, text: str) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "manege"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(str(context.get_help() if context else text) + "\n")
        return EXIT_INPUT
    sys.stderr.write(f"{path}: {text.rstrip('.')}; see `{path} --help`\n")
    return EXIT_INPUT
