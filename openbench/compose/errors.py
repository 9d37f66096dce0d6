"""Errors of Hydra and OmegaConf in the style of the project: what is wrong, what is allowed, what to type."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from openbench import paths
from openbench.compose.config import compose
from openbench.compose.sweep import jobs, label, parse, swept_keys
from openbench.config.folders import with_package
from openbench.errors import ConfigError, OpenbenchError, available, did_you_mean, not_found, pip_install

# Launchers are plug-ins that not everybody needs: launcher → the extra that installs it.
EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
_OF_CONFIGS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)


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
    """Translate the errors of a block that composes a config.

    Raises:
        ConfigError: an error about configuration; all others are raised as they are.
    """
    try:
        yield
    except OpenbenchError:
        raise
    except _OF_CONFIGS as error:
        raise _explanation(error, typed) from error


def _explanation(error: Exception, typed: Typed) -> ConfigError:
    if isinstance(error, OverrideParseException):
        return _grammar(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error)
    text = _one_line(f"{error} {error.__cause__ or ''}")
    if match := re.match(r"Could not override '([^'@]+)'\. To append to your config", text):
        return _unknown_key(match.group(1), typed)
    if match := re.match(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return ConfigError(f"'{match.group(1)}' is added with a plus sign — write +{match.group(1)}=NAME")
    if match := re.search(r"An item is already at '([^']+)'|Multiple values for ([\w/]+)\.", text):
        return ConfigError(f"'{match.group(1) or match.group(2)}' exists already — drop the plus sign, choose it once")
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        return ConfigError(
            f"'{match.group(1)}' names several values — add -m to run them all "
            f"(python -m openbench {typed.command} -m …), or brackets for one list: key=[a,b]"
        )
    reason = text or "look for a name that is empty or of the wrong kind"
    return ConfigError(with_package(f"the config does not compose — {reason}"))


def _grammar(error: OverrideParseException) -> ConfigError:
    text = error.override
    if re.fullmatch(r"[\w.-]+", text):
        files = sorted(paths.config_dir().glob(f"*/{text}.yaml"))
        plus = "+" if files and files[0].parent.name == "benchmark" else ""
        hint = f"; did you mean '{plus}{files[0].parent.name}={text}'?" if files else ""
        return ConfigError(f"argument '{text}' is not an override{hint} — write key=value")
    return ConfigError(f"override '{text}' cannot be read — write key=value, and quote it for the shell: 'key=[1,2]'")


def _missing_file(error: MissingConfigException) -> ConfigError:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and name in EXTRAS:
        return ConfigError(
            f"the launcher '{name}' is an optional extra that is not installed — {pip_install(EXTRAS[name])}"
        )
    choices = list(error.options or [])
    what = f"{group} '{name}' not found in configs/{group}"
    return ConfigError(not_found(what, name, choices, f"list {group}; your own files: --config-dir DIR"))


def _unknown_key(key: str, typed: Typed) -> ConfigError:
    """The error for a key that the config of a job lacks: the keys that would be allowed, of the first such job."""
    for job in jobs(typed.overrides, typed.config_dir):
        rest = [o.input_line or "" for o in parse(job) if o.key_or_group != key]
        try:
            cfg = compose(typed.command, rest, typed.config_dir)
        except _OF_CONFIGS:  # other arguments are wrong too
            cfg = OmegaConf.create()
        parent, leaf, allowed = _first_unknown(cfg, key)
        if leaf not in allowed:
            break
    hint = did_you_mean(leaf, allowed)
    if not parent and leaf in (cfg.get("runtime") or {}):
        hint = f"; did you mean 'runtime.{leaf}'?"
    message = f"{parent or 'the config'} has no key '{leaf}'{hint} — allowed: {available(allowed, leaf)}"
    if parent:
        message += f"; a parameter that its yaml leaves out takes a plus sign: +{key}=VALUE"
    which = label(job, swept_keys(typed.overrides, typed.config_dir))
    return ConfigError(message + f" (in the job {which})" * bool(which))


def _first_unknown(cfg: DictConfig, key: str) -> tuple[str, str, list[str]]:
    """Walk down a dotted key: the last node that exists, the first part that does not, and the keys of that node."""
    node, parts = cfg, key.split(".")
    for depth, part in enumerate(parts):
        allowed = [str(k) for k in node if not str(k).startswith("_")] if OmegaConf.is_dict(node) else []
        if part not in allowed or depth == len(parts) - 1:
            break
        node = node[part]
    return ".".join(parts[:depth]), part, allowed


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".")
