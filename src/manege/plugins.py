"""Parts from outside the package: `module:name`, an entry point's name, or the object itself.

A configuration holds references, texts such as ``my_parts:my_loss``. Each process that needs a
part imports it from there. Owns how a part is found, what identifies its source, and who is to
blame when its code fails. Knows nothing of what parts do, and imports no torch.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import site
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from manege.errors import ConfigError

GROUP = "manege.plugins"
"""The group of entry points whose names stand for references."""

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_reference(text: object) -> bool:
    """Return whether a text has the form ``module:name``."""
    return isinstance(text, str) and _REFERENCE.fullmatch(text) is not None


def reference_named(text: str) -> str | None:
    """Return the reference that a text is, or that an entry point of that name holds."""
    if is_reference(text):
        return text
    found = [point.value for point in entry_points(group=GROUP, name=text)]
    return found[0].replace(" ", "") if found and is_reference(found[0].replace(" ", "")) else None


def short(name: str) -> str:
    """Return the last part of a reference, or another name as it is: for names of folders."""
    return name.rpartition(":")[2] if is_reference(name) else name


def reference_to(part: Any, where: str) -> str:
    """Return the reference under which any process can import an object.

    Args:
        part: a function, a class, or any object that its module has under a name.
        where: the field that it was given for, for the message.
    """
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if not isinstance(name, str):
        module, name = _place_of(part)
    if module == "__main__":
        raise ConfigError(
            f"{where}: {name or type(part).__name__} is defined in this script or notebook, which "
            "other processes cannot import; put it into a module of its own (a file my_parts.py "
            "beside it) and import it from there"
        )
    if (
        not isinstance(module, str)
        or not isinstance(name, str)
        or not is_reference(f"{module}:{name}")
    ):
        raise ConfigError(
            f"{where}: {name or type(part).__name__} has no name at the top of a module, by which "
            "other processes could import it; define it there with def or class"
        )
    if load(f"{module}:{name}", where) is not part:
        raise ConfigError(
            f"{where}: {module}:{name} is now another object than the one given; import it again"
        )
    return f"{module}:{name}"


def _place_of(part: Any) -> tuple[str | None, str | None]:
    """Return the module that has an instance under a name at its top, and that name.

    Of several modules, as they may import it from each other, the one that made its parts.
    """
    places = [
        (module, key)
        for module, found in list(sys.modules.items())
        for key, value in list(getattr(found, "__dict__", {}).items())
        if value is part
    ]
    makers = {getattr(one, "__module__", None) for one in getattr(part, "__dict__", {}).values()}
    # False comes before True, and of equals the last is taken: it was imported by the others.
    ranked = sorted(places, key=lambda one: (one[0] != "__main__", one[0] in makers))
    return ranked[-1] if ranked else (None, None)


def load(reference: str, where: str) -> Any:
    """Import and return the object of a reference; raise ConfigError if there is none."""
    module_name, _, name = reference.partition(":")
    module = _module(module_name, where)
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(
                f"{where}: module {module_name} ({_file(module)}) has no {name}; "
                "look for a misspelt name"
            ) from None
    return found


_imported: dict[str, tuple[Any, str]] = {}
"""The spec of each module as it was imported, and the digest of its file when first looked at."""


def source_digest(reference: str, where: str) -> str:
    """Return the SHA-256 of the source file of a reference's module.

    Raises ConfigError if the file has changed since this process first looked at it: what runs
    would not be what the digest names.
    """
    module = _module(name := reference.partition(":")[0], where)
    file = getattr(module, "__file__", None)
    if file is None:
        raise ConfigError(
            f"{where}: {reference} comes from no file; put it into a module of its own"
        )
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    spec, known = _imported.setdefault(name, (module.__spec__, digest))
    if spec is not module.__spec__:  # It was reloaded.
        _imported[name] = module.__spec__, digest
    elif known != digest:
        raise ConfigError(
            f"{where}: {file} has changed since this process imported it; reload it with "
            "importlib.reload, or start Python anew"
        )
    return digest


def source_digests(references: Mapping[str, str]) -> dict[str, str]:
    """Import every reference; return the SHA-256 of each module's source, by its name.

    Args:
        references: dotted field to reference, as of `RunConfig.references`.
    """
    digests = {}
    for where, reference in references.items():
        load(reference, where)
        digests[reference.partition(":")[0]] = source_digest(reference, where)
    return digests


def check_sources(references: Mapping[str, str], known: Mapping[str, str], advice: str) -> None:
    """Import every reference; raise ConfigError if a module's source is not the known one.

    Args:
        references: dotted field to reference.
        known: module to the SHA-256 of its source.
        advice: what to do where a source has changed.
    """
    for name, digest in source_digests(references).items():
        if name in known and known[name] != digest:
            raise ConfigError(
                f"module {name} ({_file(sys.modules[name])}): SHA-256 of its source is "
                f"{digest[:12]}…, expected {known[name][:12]}…; {advice}"
            )


def environment() -> dict[str, str]:
    """Return this process's environment, with which another Python finds the same modules.

    A script's folder and what was put on `sys.path` by hand go into PYTHONPATH.
    """
    installed = [sys.prefix, sys.base_prefix, sys.exec_prefix, site.getusersitepackages()]
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - "" is the folder here.
    more = [
        folder
        for folder in dict.fromkeys(here)
        if os.pathsep not in folder
        and not any(Path(folder).is_relative_to(one) for one in installed)
    ]
    # In the order that they have here.
    path = os.pathsep.join(dict.fromkeys([*more, *filter(None, named)]))
    return {**os.environ, **({"PYTHONPATH": path} if path else {})}


class PartError(ConfigError):
    """The code of a part from outside the package has failed, or returned what it must not."""


@contextmanager
def blamed(reference: str, what: str) -> Iterator[None]:
    """Turn whatever the part's own code raises inside into a ConfigError with module and line."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise PartError(told(error, reference, what)) from error


def at_fault(error: BaseException, references: Iterable[str]) -> str | None:
    """Return the line about an error that passed through the code of one of these parts, if any."""
    files = {file for one in traceback.extract_tb(error.__traceback__) if (file := one.filename)}
    for reference in references:
        module = sys.modules.get(reference.partition(":")[0])
        if module is not None and _file(module) in files:
            return told(error, reference, "its code")
    return None


def told(error: BaseException, reference: str, what: str) -> str:
    """Return one line: what a part was asked, where in its module it failed, and how."""
    module = sys.modules.get(reference.partition(":")[0])
    file = _file(module) if module else None
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
    at = f" at {Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""
    said = " ".join(str(error).split()) or "no words"
    return f"{reference}: {what} raised {type(error).__name__}{at} ({said[:300]})"


def _module(name: str, where: str) -> ModuleType:
    if (known := sys.modules.get(name)) is not None:
        return known
    # The command's own script has its folder on the path, not the user's.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name and not name.startswith(f"{error.name}."):
            raise ConfigError(
                f"{where}: module {name} needs {error.name}, which is not installed"
            ) from None
        raise ConfigError(
            f"{where}: there is no module {name} here; run from the folder that holds it "
            f"(found {printed_folder()}), or name that folder in PYTHONPATH"
        ) from None
    except Exception as error:
        raise ConfigError(told_import(error, name, where)) from None


def told_import(error: Exception, name: str, where: str) -> str:
    """Return one line: why a module could not be imported, and where in it."""
    lines = [
        one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename
    ]
    at = f" at {Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""
    said = " ".join(str(error).split())
    return f"{where}: module {name} raised {type(error).__name__}{at} ({said[:300]})"


def printed_folder() -> str:
    """Return the folder that this process runs in, as a message shows it."""
    return os.fspath(Path.cwd())


def _file(module: ModuleType) -> str | None:
    try:
        return inspect.getsourcefile(module)
    except TypeError:
        return None
