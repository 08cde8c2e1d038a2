"""Texts of the options that say what to draw."""

from __future__ import annotations

import re

from manege.errors import ConfigError


def check_device(name: str) -> None:
    """Refuse what could be no device on any machine."""
    if not re.fullmatch(r"auto|cpu|cuda|cuda:[0-9]{1,4}", name):
        raise ConfigError(f"--device {name!r}: expected auto, cpu, cuda or cuda:N")


def parse_labels(text: str | None) -> list[str] | None:
    """`cat,dog`."""
    if text is None:
        return None
    labels = [part.strip() for part in text.split(",")]
    if not all(labels):
        raise ConfigError(f"--classes {text!r}: an empty label; expected names separated by commas")
    return labels


def parse_limits(text: str | None) -> dict[str, int] | None:
    """`3=50,8=50`."""
    if text is None:
        return None
    limits: dict[str, int] = {}
    for part in text.split(","):
        label, equals, number = (piece.strip() for piece in part.rpartition("="))
        if not equals or not label or not number.isdecimal():
            raise ConfigError(f"--limit {text!r}: found {part!r}, expected label=number")
        if label in limits:
            raise ConfigError(f"--limit {text!r}: {label!r} stands twice; name it once")
        limits[label] = int(number)
    return limits


def parse_weights(text: str | None) -> dict[str, float] | None:
    """`cat=3,dog=1`."""
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        label, equals, number = part.rpartition("=")
        try:
            if not equals or not label.strip():
                raise ValueError
            weight = float(number)
        except ValueError:
            raise ConfigError(
                f"--weights {text!r}: found {part!r}, expected label=number"
            ) from None
        if label.strip() in weights:
            raise ConfigError(f"--weights {text!r}: {label.strip()!r} stands twice; name it once")
        weights[label.strip()] = weight
    return weights


def parse_ends(
    text: str | None,
    count: int | None,
    balanced: bool,  # noqa: FBT001 - as the option is.
    weights: str | None,
    to_label: str | None,
    steps: int | None,
) -> tuple[int, int] | None:
    """`3:7`; beside it stand only options that make sense with it."""
    if text is None:
        for option, given in (("--steps", steps), ("--to-label", to_label)):
            if given is not None:
                raise ConfigError(
                    f"{option}: concerns the way between two pictures; add --interpolate A:B, or "
                    f"leave {option} out"
                )
        return None
    for option, also in (
        ("-n", count is not None),
        ("--balanced", balanced),
        ("--weights", weights is not None),
    ):
        if also:
            raise ConfigError(
                f"{option} and --interpolate exclude each other; say with --steps how many "
                "pictures the way has"
            )
    first, colon, last = (part.strip() for part in text.partition(":"))
    if not colon or not all(part.isdecimal() and len(part) <= 9 for part in (first, last)):
        raise ConfigError(
            f"--interpolate {text!r}: expected the numbers of two pictures, from 0, as in 3:7"
        )
    return int(first), int(last)
