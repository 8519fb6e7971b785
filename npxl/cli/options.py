"""Options: the fields of the two configurations, from a preset, a TOML file and the command line.

Later layers have precedence: defaults, then a preset, then a file, then what was given.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from cyclopts import Group, Parameter, Token, convert

from npxl.config import (
    ARCHITECTURES,
    LanguageModelConfig,
    LSTMConfig,
    ModelConfig,
    TrainConfig,
    config_of,
    from_dict,
    to_dict,
)
from npxl.config.training import READ_ONLY_WITH
from npxl.errors import NpxlError
from npxl.presets import PRESETS, START, Preset, preset

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


_TABLES: dict[str, list[str]] = {
    "model": ["architecture", *_names(ModelConfig)],
    "train": _names(TrainConfig),
}
"""Options by the table of a file that they may stand in; those of other models are among these."""


def options_of(
    kind: type[Any],
    names: Sequence[str] = (),
    default: str | None = None,
    groups: Mapping[str, Group] | None = None,
) -> Any:
    """Fields of a dataclass as a type whose values hold the options that were given, and no others.

    Names, types and help are those of the fields; all of them, unless `names` chooses some.  The
    default shown is that of the preset "default", unless `default` says otherwise.  `groups` are
    those in the help of fields whose metadata says what they are about.
    """
    hints = get_type_hints(kind)
    start = preset("default")
    defaults = {**to_dict(start.model), **to_dict(start.train)}

    def parameter(field: dataclasses.Field[Any]) -> Parameter:
        about = field.metadata.get("about", "")
        group: dict[str, Any] = {"group": groups[about]} if groups and about in groups else {}
        hint, several = hints[field.name], dict[str, Any]()
        convert_tokens: Callable[..., Any] = converted
        if get_origin(hint) is tuple:
            several = {"consume_multiple": True, "negative": ""}
            convert_tokens = _converted_several
        elif type(None) in get_args(hint):
            convert_tokens = _converted_or_none
        return Parameter(
            show_default=default or shown(defaults[field.name]),
            converter=convert_tokens,
            **several,
            **group,
        )

    options = cast(Any, TypedDict)(
        f"{kind.__name__}Options",
        {
            field.name: Annotated[_as_typed(hints[field.name]), parameter(field)]
            for field in dataclasses.fields(kind)
            if not names or field.name in names
        },
        total=False,
    )
    options.__doc__ = kind.__doc__
    return options


def _as_typed(hint: Any) -> Any:
    """The type of an option whose field has this one: cyclopts takes no words for several bools."""
    return tuple[Literal["true", "false"], ...] if hint == tuple[bool, ...] else hint


def converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """cyclopts's conversion, which rounds 1.5 to 2 for a whole number, without the rounding."""
    if kind in (int, int | None) and "." in tokens[0].value:
        raise ValueError(f'"{tokens[0].value}" is not a whole number')
    return convert(kind, tokens)


def _converted_or_none(kind: Any, tokens: Sequence[Token]) -> Any:
    """What cyclopts 5 does by itself, and cyclopts 4, the last one for Python 3.10, does not."""
    return None if tokens[0].value == "none" else converted(kind, tokens)


def _converted_several(kind: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Values one after another, or the word for no value at all."""
    if [token.value for token in tokens] == ["none"]:
        return ()
    (one, _) = get_args(kind)
    values = tuple(converted(one, [token]) for token in tokens)
    return tuple(value == "true" for value in values) if one is not int else values


def shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# What several commands take.
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]
Which = Literal["best", "last"]


if TYPE_CHECKING:
    _Architecture = str
else:
    _Architecture = Literal[tuple(ARCHITECTURES)]
Architecture = Annotated[
    _Architecture | None,
    Parameter(
        help="Kind of model: transformer_xl; or lstm, to compare with, which has of these options "
        f"{', '.join(_names(LSTMConfig))}. When not given, that of the preset."
    ),
]


def preset_help(purpose: str) -> Parameter:
    """Help for an option that takes the name of a preset."""
    return Parameter(help=f"{purpose}: {', '.join(PRESETS)}.")


def configured(
    preset_name: str | None, file: Path | None, given: Mapping[str, Any]
) -> tuple[LanguageModelConfig, TrainConfig, set[str]]:
    """Both configurations, and the names of the options that the file or the command line set."""
    layers = [given] if file is None else [_read_toml(file), given]
    start = _start(preset_name, layers)
    values = {**to_dict(start.model), **to_dict(start.train)}
    for layer in layers:
        _check_applicable(start.model, layer)
        if layer.get("steps") is not None and layer.get("minutes") is not None:
            raise NpxlError(
                f"steps is {layer['steps']} and minutes is {layer['minutes']}, but only one of "
                "them can say how long to train; leave one out."
            )
        if "steps" in layer:
            values["minutes"] = None
        values.update(layer)
    chosen = {name for layer in layers for name in layer}
    if "vocab_size" not in chosen:  # that of the corpus takes its place
        values["vocab_size"] = max(values["vocab_size"], *_after(values["cutoffs"]))
    for name, (chooser, readers) in READ_ONLY_WITH.items():
        if name not in chosen and values[chooser] not in readers:  # the preset's own is meant
            values[name] = getattr(TrainConfig, name)
    model = config_of(
        start.model.architecture, {name: values[name] for name in to_dict(start.model)}
    )
    train = from_dict(TrainConfig, {name: values[name] for name in to_dict(start.train)})
    return model, train, chosen


def _start(preset_name: str | None, layers: Sequence[Mapping[str, Any]]) -> Preset[Any]:
    """The preset that has been named, or else the one to start from for an architecture."""
    start, architecture = None if preset_name is None else preset(preset_name), None
    for layer in layers:
        architecture = layer.get("architecture", architecture)
    if architecture is not None and architecture not in ARCHITECTURES:
        raise NpxlError(
            f"architecture is {architecture!r}, but it must be one of {', '.join(ARCHITECTURES)}."
        )
    if start is None:
        return preset(START[architecture or "transformer_xl"])
    if architecture not in (None, start.model.architecture):
        raise NpxlError(
            f"architecture is {architecture}, but the preset {preset_name} is of a "
            f"{start.model.architecture}: leave out one of them."
        )
    return start


def _check_applicable(start: LanguageModelConfig, layer: Mapping[str, Any]) -> None:
    """NpxlError when a layer sets an option that the model to start from has not."""
    own = to_dict(start)
    for name, value in layer.items():
        if name in _TABLES["model"][1:] and name not in own:
            raise NpxlError(
                f"{name} is {shown(value)}, but the architecture {start.architecture} has no such "
                f"option; it has {', '.join(own)}."
            )


def _after(cutoffs: Any) -> list[int]:
    """Sizes of a vocabulary in which there are these symbols; what is no symbol has none."""
    symbols = cutoffs if isinstance(cutoffs, list | tuple) else ()
    return [0, *(symbol + 1 for symbol in symbols if isinstance(symbol, int))]


def _read_toml(path: Path) -> dict[str, Any]:
    """The options in a file, at its top level or in its tables [model] and [train]."""
    try:
        contents = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise NpxlError(f"The file {path} of --config cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NpxlError(f"The file {path} of --config is not TOML: {error}.") from error
    layer = {}
    for key, value in contents.items():
        if key in _TABLES and isinstance(value, dict):
            layer.update(_checked(path, f"its table [{key}]", value, _TABLES[key]))
        else:
            every_name = [name for names in _TABLES.values() for name in names]
            layer.update(_checked(path, "npxl train", {key: value}, every_name))
    return layer


def _checked(
    path: Path, where: str, values: dict[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    for name in values:
        if name not in names:
            raise NpxlError(
                f"{path} sets {name!r}, but {where} has no such option; it has {', '.join(names)}."
            )
    return {name: None if value == "none" else value for name, value in values.items()}
