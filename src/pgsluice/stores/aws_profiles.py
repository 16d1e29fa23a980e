"""Profiles of AWS's command line: ``~/.aws/credentials`` and ``~/.aws/config``.

Keys in these files are read here. A profile with other sources of keys (a role, single sign-on, a
program) needs boto3.
"""

from __future__ import annotations

import importlib
import os
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any, NamedTuple

from pgsluice.stores.contract import StoreError

_DEFAULT = "default"
_FROM_ELSEWHERE = ("role_arn", "sso_session", "sso_start_url", "credential_process")


class StaticKeys:
    """Keys that do not expire; a call returns them in obstore's form."""

    def __init__(self, access_key_id: str, secret_access_key: str, token: str | None) -> None:
        self._answer = {
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "token": token,
            "expires_at": None,
        }

    def __call__(self) -> dict[str, Any]:
        return self._answer


class Profile(NamedTuple):
    """The content of a profile; ``keys`` is a credential provider for obstore."""

    keys: Any
    region: str | None


def profile_of(name: str | None) -> Profile | None:
    """A profile: of this name, else the one in the environment, else the default one; None: there
    is none.

    Raises:
        StoreError: the profile of that name does not exist, or needs boto3.
    """
    named = name or os.environ.get("AWS_PROFILE")
    profile = named or _DEFAULT
    values = {
        **_section("AWS_CONFIG_FILE", "config", profile, f"profile {profile}"),
        **_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    }
    if not values:
        if named is None:
            return None
        raise StoreError(
            f"the AWS profile {profile} does not exist on this machine",
            hint="add the profile to ~/.aws/credentials or ~/.aws/config of the user who runs "
            "pgsluice",
        )
    region = values.get("region")
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        token = values.get("aws_session_token")
        keys = StaticKeys(values["aws_access_key_id"], values["aws_secret_access_key"], token)
        return Profile(keys, region)
    if not any(key in values for key in _FROM_ELSEWHERE):
        return Profile(None, region)
    return Profile(_by_boto3(profile), region)


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
