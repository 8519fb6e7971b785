"""What is said of a model beside its tensors: files of options, and what those mean for npxl."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npxl.config import checked_int
from npxl.errors import NpxlError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


SAME = (
    "n_layer", "n_head", "d_model", "d_head", "d_inner", "div_val", "mem_len", "dropout", "dropatt",
    "pre_lnorm",
)  # fmt: skip
"""Options of both implementations that are fields of ModelConfig and mean the same."""


def read_options(path: str | Path) -> dict[str, Any]:
    """The options in a JSON file, or in a TOML file if that is how its name ends.

    Raises NpxlError when there is no such file, or it holds anything else.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise NpxlError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise NpxlError(f"{path} is damaged: {error}.") from error
    if not isinstance(values, dict):
        raise NpxlError(f"{path} holds a {type(values).__name__}, but an object was expected.")
    return values


def without_aliases(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """The options by one name each; NpxlError when two names of one have different values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        name = aliases.get(name, name)
        first = found.setdefault(name, value)
        if first is not value and first != value:  # NaN is not equal to itself
            others = [alias for alias, meant in aliases.items() if meant == name]
            raise NpxlError(
                f"{name} has two values, {found[name]!r} and {value!r}; it is also called "
                f"{' or '.join(others)}: leave all but one out."
            )
    return found


def fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ModelConfig from the options that both implementations have under the same names.

    Raises NpxlError for what npxl cannot express.
    """
    if checked_int("sample_softmax", values["sample_softmax"], minimum=-_ANY) > 0:
        raise NpxlError(
            f"sample_softmax is {values['sample_softmax']}, but npxl does not sample the softmax; "
            "if the model was only trained so, set it to -1."
        )
    clamp_len = checked_int("clamp_len", values["clamp_len"], minimum=-_ANY)
    d_embed = None if values["d_embed"] == values["d_model"] else values["d_embed"]
    cutoffs, tie_projs = list_of(values, "cutoffs"), list_of(values, "tie_projs")
    of_projections = {"proj_init_std": values["proj_init_std"]}
    if d_embed is None and values["div_val"] == 1:  # there are none
        tie_projs, of_projections = [], {}
    elif any(tie_projs):
        tie_projs += [False] * (len(cutoffs) + 1 - len(tie_projs))
    return {
        **{name: values[name] for name in SAME},
        "attn_window": _window(values),
        "clamp_len": clamp_len if clamp_len > 0 else None,
        "d_embed": d_embed,
        "cutoffs": cutoffs,
        "tie_projs": tie_projs if any(tie_projs) else (),
        **of_projections,
    }


_ANY = 2**31


def list_of(values: Mapping[str, Any], name: str) -> list[Any]:
    """An option that is a list, or null for an empty one."""
    value = values[name]
    if not isinstance(value, list | None):
        raise NpxlError(f"{name} is {value!r}, but it must be a list.")
    return list(value or [])


def bool_of(values: Mapping[str, Any], name: str) -> bool:
    """An option that is true or false, and nothing that could be taken for it."""
    value = values[name]
    if not isinstance(value, bool):
        raise NpxlError(f"{name} is {value!r}, but it must be true or false.")
    return value


def _window(values: Mapping[str, Any]) -> int | None:
    """Keys that a query sees at most, itself included: mem_len, not one more, with same_length."""
    same_length, mem_len = bool_of(values, "same_length"), values["mem_len"]
    if same_length and mem_len == 0:
        raise NpxlError(
            "same_length is true and mem_len 0, with which every key is hidden from every query: "
            "the original code gives no numbers then, and TransfoXL the average over all tokens, "
            "later ones too. Set same_length to false."
        )
    return mem_len if same_length else None
