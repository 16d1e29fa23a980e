"""``storage_options``: the settings of a store's client, under deltalake's names.

A value ``env:NAME`` is read from an environment variable of the machine that uses the store. For
missing options, the clouds' own conventions apply: environment variables, AWS's profiles, web
identities, and the roles of instances and containers. Keys in AWS's profiles
(``~/.aws/credentials`` and ``~/.aws/config``) are read here; a profile with other sources of keys
(a role, single sign-on, a program) needs boto3.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from configparser import ConfigParser, Error
from datetime import timedelta
from pathlib import Path
from typing import Any

from pgsluice.stores.addresses import Cloud
from pgsluice.stores.contract import StoreError

_ENVIRONMENT = "env:"
_DEFAULT_PROFILE = "default"
_FROM_ELSEWHERE = ("role_arn", "sso_session", "sso_start_url", "credential_process")
"""Keys of a profile whose keys come from another service or program."""
_PREFIXES = {"s3": "aws_", "gcs": "google_", "azure": "azure_"}
_CLIENT = frozenset(
    (
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only"),
        *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url"),
        *("proxy_ca_certificate", "proxy_excludes", "timeout", "user_agent"),
    )
)
_RETRIES = frozenset(("max_retries", "retry_timeout"))
_OF_DELTALAKE = ("s3_allow_unsafe_rename", "allow_unsafe_rename", "s3_locking_provider", "dynamo_")
"""Prefixes of options for deltalake's commits, which pgsluice does not use."""

# A request may carry 32 MiB; a small one that hangs is sent again, or its outcome is looked at.
_CLIENT_DEFAULTS = {"timeout": "60s", "connect_timeout": "5s"}
_RETRY_DEFAULTS = {"max_retries": "6", "retry_timeout": "90"}
_MOST = 1_000_000


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with references to environment variables replaced by their values; raises
    StoreError if a variable is not set on this machine."""
    return {key: _value(key, value) for key, value in options.items()}


def client_settings(cloud: Cloud, options: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a store's client on this machine, as arguments of obstore; raises StoreError
    if an environment variable or profile that they name does not exist."""
    config: dict[str, str] = {}
    client: dict[str, str] = dict(_CLIENT_DEFAULTS)
    retries = dict(_RETRY_DEFAULTS)
    profile: str | None = None
    for name, value in resolved(options).items():
        key = name.lower()
        bare = key.removeprefix(_PREFIXES[cloud])
        if bare in _CLIENT:
            client[bare] = value
        elif bare in _RETRIES:
            retries[bare] = value.removesuffix("s")
        elif bare == "profile" and cloud == "s3":
            profile = value
        elif not bare.startswith(_OF_DELTALAKE) and not key.startswith("delta_dynamo"):
            config[key] = value
    keys = _aws_keys(config, profile) if cloud == "s3" else None
    return {
        "config": config,
        "client_options": client,
        "retry_config": {
            "max_retries": int(_number(retries, "max_retries")),
            "retry_timeout": timedelta(seconds=_number(retries, "retry_timeout")),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
        **({} if keys is None else {"credential_provider": keys}),
    }


def _number(retries: Mapping[str, str], name: str) -> float:
    try:
        number = float(retries[name])
    except ValueError:
        number = -1.0
    if not 0 <= number <= _MOST:
        raise StoreError(
            f"the option {name} in storage_options is not a number from 0 to {_MOST}",
            hint='write a number, such as max_retries = "6" or retry_timeout = "90s"',
        )
    return number


def deltalake_options(cloud: Cloud, options: Mapping[str, str]) -> dict[str, str]:
    """The options in deltalake's form, which has neither references nor our profiles; raises as
    :func:`client_settings`."""
    keys = client_settings(cloud, options).get("credential_provider")
    profiles = ("profile", "aws_profile")
    known = {key: value for key, value in resolved(options).items() if key.lower() not in profiles}
    if keys is None or "access_key_id" in {key.lower().removeprefix("aws_") for key in known}:
        return known
    found = keys()
    known |= {f"aws_{name}": found[name] for name in ("access_key_id", "secret_access_key")}
    return known | ({"aws_session_token": found["token"]} if found.get("token") else {})


def _value(key: str, value: str) -> str:
    if not value.startswith(_ENVIRONMENT):
        return value
    variable = value.removeprefix(_ENVIRONMENT)
    try:
        return os.environ[variable]
    except KeyError:
        raise StoreError(
            f"the option {key} in storage_options names the environment variable {variable}, which "
            "is not set",
            hint="set the variable for every process of pgsluice, and on Spark's executors",
        ) from None


def _aws_keys(config: dict[str, str], profile: str | None) -> Any:
    """AWS's keys in the options or in a profile; None: the client searches for them.

    Keys in the options are never combined with a session token in the environment.
    """
    bare = {key.removeprefix(_PREFIXES["s3"]): key for key in config}
    names = [bare.get(key) for key in ("access_key_id", "secret_access_key")]
    if all(names):
        token = next((bare[key] for key in ("session_token", "token") if key in bare), None)
        access, secret = (config.pop(name) for name in names if name)
        return _static_keys(access, secret, config.pop(token) if token else None)
    if profile is None and (
        any(names)
        or _is_set("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
        or _is_set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
        or not bare.keys().isdisjoint(("skip_signature", "web_identity_token_file"))
    ):
        return None
    keys, region = _profile(profile)
    has_region = bare.keys() & {"region", "default_region"}
    if region and not has_region and not _is_set("AWS_REGION", "AWS_DEFAULT_REGION"):
        config["aws_region"] = region
    return keys


def _is_set(*variables: str) -> bool:
    return any(os.environ.get(variable) for variable in variables)


def _static_keys(access_key_id: str, secret_access_key: str, token: str | None) -> Any:
    """A provider of keys that do not expire, in obstore's form."""
    answer = {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": token,
        "expires_at": None,
    }
    return lambda: answer


def _profile(name: str | None) -> tuple[Any, str | None]:
    """The provider of keys, and the region, of the profile of this name, else of the one in the
    environment, else of the default one; raises StoreError if a named one does not exist."""
    named = name or os.environ.get("AWS_PROFILE")
    profile = named or _DEFAULT_PROFILE
    values = {
        **_section("AWS_CONFIG_FILE", "config", profile, f"profile {profile}"),
        **_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    }
    if not values:
        if named is None:
            return None, None
        raise StoreError(
            f"the AWS profile {profile} does not exist on this machine",
            hint="add the profile to ~/.aws/credentials or ~/.aws/config of the user who runs "
            "pgsluice",
        )
    region = values.get("region")
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        token = values.get("aws_session_token")
        keys = _static_keys(values["aws_access_key_id"], values["aws_secret_access_key"], token)
        return keys, region
    if not any(key in values for key in _FROM_ELSEWHERE):
        return None, region
    return _by_boto3(profile), region


def _by_boto3(profile: str) -> Any:
    try:
        session = importlib.import_module("boto3.session").Session(profile_name=profile)
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ModuleNotFoundError:
        raise StoreError(
            f"the AWS profile {profile} gets its keys from another service or program, and "
            "pgsluice needs the package boto3 for that",
            hint="pip install boto3",
        ) from None
    return provider(session)


def _section(variable: str, file: str, *names: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path("~/.aws") / file).expanduser()
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(path, encoding="utf-8")
    except Error:
        raise StoreError(f"{path} cannot be read as AWS's configuration") from None
    for name in names:
        if parser.has_section(name):
            return dict(parser[name])
    return {}
