"""Errors of stores in words, against real servers; never a secret in them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.stores.conftest import MakeFolder
from tests.support.object_stores import SECRET, ObjectStore
from tests.support.store_proxy import StoreProxy

from pgsluice.errors import ConfigError
from pgsluice.stores.contract import Folder, StoreError
from pgsluice.stores.options import client_settings
from pgsluice.stores.places import folder_at

_NO_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE")


@pytest.fixture(autouse=True)
def _nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in _NO_KEYS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def _says(folder: Folder) -> str:
    """What a create says, a listing the same."""
    texts = []
    for use in (
        lambda: folder.create("1", b"one"),
        lambda: folder.entries(),
        lambda: folder.read("1"),
    ):
        with pytest.raises(StoreError) as caught:
            use()
        texts.append(str(caught.value))
    first = {text.partition("\n")[0] for text in texts}
    assert len(first) == 1
    assert SECRET not in "".join(texts)
    return texts[0]


def test_a_bucket_that_is_not_there(s3_store: ObjectStore) -> None:
    said = _says(folder_at("s3://nowhere/x", s3_store.options))
    assert said.startswith("s3://nowhere does not exist")


@pytest.mark.parametrize("scheme", ["google", "azure"])
def test_a_bucket_of_another_cloud_that_is_not_there(
    request: pytest.FixtureRequest, scheme: str
) -> None:
    store: ObjectStore = request.getfixturevalue(f"{scheme}_store")
    said = _says(folder_at(f"{store.scheme}://nowhere/x", store.options))
    assert said.startswith(f"{store.scheme}://nowhere does not exist")


def test_a_store_that_is_away(s3_folder: MakeFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = _says(s3_folder(aws_endpoint_url=f"http://127.0.0.1:{port}", max_retries="0"))
    assert said.startswith("the store of s3://lake cannot be reached from")
    assert "Connection refused" in said


def test_a_store_that_does_not_answer(s3_folder: MakeFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        said = _says(s3_folder(aws_endpoint_url=endpoint, max_retries="0", timeout="300ms"))
    assert said.startswith("the store of s3://lake did not answer in time")


def test_no_credentials_are_missed_on_a_machine(s3_store: ObjectStore) -> None:
    # The client then asks the cloud's own address for a role: here, a port that nobody serves.
    options = {key: text for key, text in s3_store.options.items() if "key" not in key}
    options |= {"aws_metadata_endpoint": "http://127.0.0.1:9/169.254.169.254", "max_retries": "0"}
    said = _says(folder_at("s3://lake/x", options))
    assert said.startswith(f"no credentials for s3://lake were found on {socket.gethostname()}")
    assert "a profile or a role" in said


@pytest.mark.xdist_group("azure")
def test_a_key_that_the_store_does_not_know(azure_store: ObjectStore) -> None:
    wrong = {**azure_store.options, "azure_storage_account_key": "d3Jvbmc="}
    said = _says(folder_at("az://lake/x", wrong))
    assert said.startswith("the store does not accept the credentials for az://lake of")
    assert "d3Jvbmc=" not in said


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"allow_http": "false"}, "the endpoint of s3://lake has plain http"),
        (
            {"aws_regoin": "x"},
            "storage_options do not fit s3://lake\n  Configuration key: 'aws_regoin'",
        ),
        ({"region": "x"}, "storage_options do not fit s3://lake\n  Duplicate key aws_region"),
        (
            {"aws_region": "env:NOT_SET"},
            "the option aws_region in storage_options names the environment variable NOT_SET",
        ),
    ],
)
def test_options_that_do_not_fit(s3_folder: MakeFolder, options: dict[str, str], what: str) -> None:
    assert _says(s3_folder(**options)).startswith(what)


@pytest.mark.parametrize(
    ("status", "code", "what"),
    [
        (403, "AccessDenied", "the credentials of {machine} may not"),
        (403, "InvalidAccessKeyId", "the store does not accept the credentials for s3://lake"),
        (403, "SignatureDoesNotMatch", "the store does not accept the credentials for s3://lake"),
        (400, "ExpiredToken", "the store does not accept the credentials for s3://lake"),
        (404, "XAdminUserNotFound", "the store does not accept the credentials for s3://lake"),
        (400, "AuthorizationHeaderMalformed", "s3://lake is in another region"),
        (301, "PermanentRedirect", "s3://lake is in another region"),
        (403, "RequestTimeTooSkewed", "the clock of {machine} differs too much"),
        (403, "QuotaExceeded", "no room is left in s3://lake"),
        (503, "SlowDown", "the store of s3://lake takes no more requests for now"),
        (500, "InternalError", "the store of s3://lake fails"),
        (418, "Teapot", "pgsluice could not"),
    ],
)
def test_what_a_store_refuses_with(
    s3_folder: MakeFolder, proxy: StoreProxy, status: int, code: str, what: str
) -> None:
    proxy.refusal = status, code
    folder = s3_folder(aws_endpoint_url=proxy.endpoint, max_retries="0")
    with pytest.raises(StoreError) as caught:
        folder.create("1", b"one")
    assert str(caught.value).startswith(what.format(machine=socket.gethostname()))
    # A redirect that leads nowhere is an error of the client itself, without the store's words.
    assert status == 301 or f"{code}: A message." in caught.value.details
    for read in (folder.entries, lambda: folder.read("1"), lambda: folder.delete("1")):
        with pytest.raises(StoreError):
            read()


def test_a_value_may_name_an_environment_variable(
    s3_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    folder = s3_folder(aws_secret_access_key="env:THE_SECRET")
    folder.create("1", b"one")
    assert folder.storage_options()["aws_secret_access_key"] == SECRET
    assert SECRET not in repr(folder)
    assert SECRET not in repr(s3_folder())


def test_a_profile_has_keys_and_a_region(
    s3_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        f"[lake]\naws_access_key_id = pgsluice\naws_secret_access_key = {SECRET}\n"
    )
    (tmp_path / "config").write_text(
        "[profile lake]\nregion = us-east-1\n[profile sso]\nsso_session = x\n"
    )
    options = {"aws_endpoint_url": s3_store.endpoint, "allow_http": "true"}
    by_option = folder_at("s3://lake/profiles", {**options, "aws_profile": "lake"})
    assert by_option.entries() == []
    assert by_option.storage_options()["aws_secret_access_key"] == SECRET
    monkeypatch.setenv("AWS_PROFILE", "lake")
    assert folder_at("s3://lake/by_variable", {**options, "timeout": "59s"}).entries() == []
    for name, what in (("sso", "boto3"), ("nobody", "the AWS profile nobody does not exist")):
        with pytest.raises(StoreError, match=what):
            folder_at("s3://lake/profiles", {**options, "aws_profile": name}).entries()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("unity://main/lake", 'is a URL of "unity"'),
        ("hdfs://lake/x", 'is a URL of "hdfs"'),
        ("s3://", "names no bucket"),
        ("s3://key:secret@lake/x", "may not have a user or a password"),
        ("s3://lake/a?b", 'has a "\\?"'),
        ("s3://lake/../x", 'may not have "."'),
    ],
)
def test_a_url_of_no_store_is_refused(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        folder_at(url)


@pytest.mark.parametrize("option", ["max_retries", "retry_timeout"])
@pytest.mark.parametrize("value", ["soon", "", "-1", "nan", "inf", "1e30"])
def test_retries_are_numbers(option: str, value: str) -> None:
    with pytest.raises(StoreError, match=f"the option {option} in storage_options is not a number"):
        client_settings("s3", {option: value})
