"""Hydra's and OmegaConf's errors in the project's words: what is wrong, what is allowed, what to type."""

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from openbench import paths
from openbench.compose.config import compose
from openbench.compose.sweep import jobs, label, parse, swept_keys
from openbench.config.build import target_of
from openbench.errors import ConfigError, did_you_mean
from openbench.installation import pip_install
from openbench.public import TARGET

# Launchers are plug-ins that not everybody needs: launcher → the extra that installs it.
EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}


@dataclass(frozen=True)
class Typed:
    """What the user typed, as far as an explanation needs it.

    Args:
        command: run, train, extract or check.
        overrides: the `key=value` arguments.
        config_dir: the folder after `--config-dir`.
    """

    command: str
    overrides: Sequence[str]
    config_dir: Path | None = None


@contextmanager
def explained(typed: Typed) -> Iterator[None]:
    """Have the errors of a block that composes a config come out in our words.

    Raises:
        ConfigError: an error about configuration; all others come out as they are.
    """
    try:
        yield
    except Exception as error:
        told = _explain(error, typed)
        if told is None:
            raise
        raise told from error


def _explain(error: Exception, typed: Typed) -> ConfigError | None:
    """Return the error as a ConfigError, or None if it is not about configuration."""
    if isinstance(error, OverrideParseException):
        return _grammar(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error)
    for pattern, words in _PATTERNS:
        if isinstance(error, HydraException | ValueError) and (match := re.search(pattern, str(error))):
            return words(match, typed)
    if isinstance(error, HydraException | OmegaConfBaseException):
        parts = [str(error), str(error.__cause__ or "")]
        return ConfigError(f"the config does not compose — {_one_line(' '.join(parts))}")
    if isinstance(error, ValueError) and _raised_by_hydra(error):
        return ConfigError(f"the config does not compose — {_one_line(str(error))}")
    if isinstance(error, AssertionError) and _raised_by_hydra(error):  # which says nothing to a user
        return ConfigError(
            "the config does not compose — an argument, or an entry of `defaults` in a config file, is not of a form "
            "that can be used — look for a name that is empty or of the wrong kind"
        )
    return None


def _raised_by_hydra(error: Exception) -> bool:
    """Whether an error that is none of Hydra's own was raised in its code: of its checks some raise others."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("hydra.")


def _grammar(error: OverrideParseException) -> ConfigError:
    text = error.override
    if re.fullmatch(r"[\w.-]+", text):
        found = sorted(paths.config_dir().glob(f"*/{text}.yaml"))
        plus = "+" if found and found[0].parent.name == "benchmark" else ""
        hint = f"; did you mean '{plus}{found[0].parent.name}={text}'?" if found else ""
        return ConfigError(f"argument '{text}' is not an override{hint} — write key=value")
    reason = _one_line(re.sub(r"See https?://\S+.*", "", error.message).replace(f"Error parsing override '{text}'", ""))
    return ConfigError(
        f"override '{text}' cannot be read: {reason} — write key=value, and quote lists, commas and spaces for the "
        "shell: 'key=[1,2]'"
    )


def _missing_file(error: MissingConfigException) -> ConfigError:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    choices = list(error.options or [])
    if group == "hydra/launcher" and name in EXTRAS:
        extra = EXTRAS[name]
        return ConfigError(f"the launcher '{name}' is not installed — it is an optional extra: {pip_install(extra)}")
    if not group:
        return ConfigError(f"config '{name}' not found in {paths.config_dir().name}{did_you_mean(name, choices)}")
    hint = did_you_mean(name, choices) or f" — available: {', '.join(choices) or 'none'}"
    source = re.match(r"In '([^']+/[^']+)'", str(error))
    named = f", named in {source.group(1)}.yaml" if source and source.group(1) != "hydra/config" else ""
    command = (
        "" if group.startswith("hydra") else f" (python -m openbench list {group}; your own files: --config-dir DIR)"
    )
    return ConfigError(f"{group} '{name}' not found in configs/{group}{named}{hint}{command}")


def _unknown_key(match: re.Match[str], typed: Typed) -> ConfigError:
    key = match.group(1)
    job, where = _job_without(key, typed)
    base = _without(key, job)
    parent, leaf, allowed = _first_unknown(base, key)
    nested = "" if parent or leaf not in (base.get("runtime") or {}) else f"; did you mean 'runtime.{leaf}'?"
    if _is_taken(OmegaConf.select(base, parent) if parent else None, leaf):
        nested = f"; its yaml leaves it out: did you mean '+{key}=…'?"
    hint = (nested or did_you_mean(leaf, allowed)) + f" — allowed: {', '.join(allowed) or 'none'}"
    if where and "did you mean" not in hint:
        where += "; run the jobs without this key in a separate command"
    return ConfigError(f"{parent or 'the config'} has no key '{leaf}'{hint}{where}")


def _is_taken(node: object, leaf: str) -> bool:
    """Whether what a node makes has a parameter of that name, which its yaml need not name."""
    if not OmegaConf.is_dict(node) or TARGET not in node:  # type: ignore[operator]
        return False
    try:
        return leaf in signature(target_of({TARGET: node[TARGET]})).parameters  # type: ignore[index]
    except Exception:  # whatever the user's code raises while it is imported: the key is not there, and that is said
        return False


def _job_without(key: str, typed: Typed) -> tuple[Typed, str]:
    """The first job of a sweep whose config lacks a key, and its name; all that was typed if none does."""
    swept = swept_keys(typed.overrides, typed.config_dir)
    for_all = [o.input_line or "" for o in parse(typed.overrides) if o.is_hydra_override()]
    for overrides in jobs(typed.overrides, typed.config_dir) if swept else []:
        job = replace(typed, overrides=[*for_all, *overrides])
        parent, _, leaf = key.rpartition(".")
        node = OmegaConf.select(_without(key, job), parent) if parent else _without(key, job)
        if not OmegaConf.is_dict(node) or leaf not in node:
            return job, f" — in the job {label(overrides, swept)}"
    return typed, ""


def _nothing_to_remove(match: re.Match[str], typed: Typed) -> ConfigError:
    key = match.group(1)
    parent, leaf, allowed = _first_unknown(_without(key, typed), key)
    where = f" of {parent}" if parent else ""
    return ConfigError(
        f"~{key} removes nothing: '{leaf}' is not a key{where}{did_you_mean(leaf, allowed)} — allowed: "
        f"{', '.join(allowed) or 'none'}"
    )


def _needs_plus(match: re.Match[str], typed: Typed) -> ConfigError:
    key = match.group(1)
    written = next((o for o in typed.overrides if o.startswith(f"{key}=")), f"{key}=NAME")
    if key == "benchmark":
        return ConfigError(f"a benchmark is added with a plus sign — found {written} — write +{written}")
    return ConfigError(f"'{key}' is not a group of `{typed.command}` — found {written} (python -m openbench list)")


def _drop_plus(match: re.Match[str], typed: Typed) -> ConfigError:
    key = match.group(1)
    written = next((o for o in typed.overrides if re.match(rf"\+{re.escape(key)}[=@]", o)), None)
    if written is None:
        return ConfigError(f"'{key}' is chosen twice — choose it once")
    return ConfigError(f"'{key}' exists already — found {written} — drop the plus sign: {written[1:]}")


def _needs_multirun(match: re.Match[str], typed: Typed) -> ConfigError:
    return ConfigError(
        f"'{match.group(1)}' names several values — add -m to run them all "
        f"(python -m openbench {typed.command} -m …), or brackets for one list: key=[a,b]"
    )


def _no_group_value(match: re.Match[str], typed: Typed) -> ConfigError:
    groups = {folder.name for folder in paths.config_dir().iterdir() if folder.is_dir()}
    wrong = [o for o in parse(typed.overrides) if o.key_or_group in groups and not isinstance(o.value(), str | list)]
    found = f" — found {wrong[0].input_line}" if wrong else ""
    group = wrong[0].key_or_group if wrong else "GROUP"
    return ConfigError(f"a config group takes a name{found} (python -m openbench list {group})")


_PATTERNS: tuple[tuple[str, Callable[[re.Match[str], Typed], ConfigError]], ...] = (
    (r"Could not override '([^']+)'\. No match in the defaults list", _needs_plus),
    (r"Could not override '([^'@]+)'\.\s+To append to your config", _unknown_key),
    (r"Could not delete from config\. '([^']+)' does not exist", _nothing_to_remove),
    (r"Could not delete '([^']+)'\. No match in the defaults list", _nothing_to_remove),
    (r"An item is already at '([^']+)'", _drop_plus),
    (r"Multiple values for ([\w/]+)\.", _drop_plus),
    (r"Ambiguous value for argument '(.+)'", _needs_multirun),
    (r"Sweep parameters '(.+)' requires --multirun", _needs_multirun),
    (r"Config group override must be a string or a list", _no_group_value),
    (r"^(Only one of --.+|The --resolve flag .+)", lambda match, typed: ConfigError(match.group(1))),
)


def _without(key: str, typed: Typed) -> DictConfig:
    """The config that the other arguments make; an empty one where they are wrong too."""
    kept = [o.input_line for o in parse(typed.overrides) if o.key_or_group != key and not o.is_sweep_override()]
    try:
        return compose(typed.command, [text for text in kept if text is not None], typed.config_dir)
    except (HydraException, OmegaConfBaseException, ValueError):
        return OmegaConf.create()


def _first_unknown(base: DictConfig, key: str) -> tuple[str, str, list[str]]:
    """Walk down a dotted key: the last node that exists, the first part that does not, and the keys that would."""
    node, parts = base, key.split(".")
    for depth, part in enumerate(parts):
        below = OmegaConf.select(node, part) if OmegaConf.is_dict(node) else None
        if below is None:
            allowed = [str(k) for k in node if not str(k).startswith("_")] if OmegaConf.is_dict(node) else []
            return ".".join(parts[:depth]), part, allowed
        node = below
    return ".".join(parts[:-1]), parts[-1], []


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".")
