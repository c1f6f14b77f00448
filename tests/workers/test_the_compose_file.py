"""The compose file of several servers and workers: what it names is there, and its commands are those of the command line."""

from __future__ import annotations

import tomllib
from typing import Any
from urllib.parse import urlsplit

import click
import yaml

from loopline.cli.server import serve
from loopline.cli.workers import worker
from loopline.harness import parse_store_url
from loopline.store.redis_relay import RedisRelay
from loopline.store.s3_blobs import S3Place
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "compose.yaml").read_text("utf-8")
COMPOSE: Any = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def parse(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """The values of the command with these arguments; a wrong one is an error of click."""
    return command.make_context(command.name or "", list(arguments)).params


def test_two_servers_only_submit_and_two_workers_run_turns() -> None:
    servers = [service for name, service in OURS.items() if name.startswith("server")]
    assert len(servers) == 2
    for service in servers:
        values = parse(serve, service["command"])
        assert (values["workers"], values["bundles"]) == (0, ("/bundle",))
        assert str(values["keys"]) == "/data/keys.json"
        assert "keys:/data" in service["volumes"]
    of_worker = OURS["worker"]
    assert of_worker["entrypoint"] == ["loopline", "worker"]
    assert of_worker["deploy"]["replicas"] == 2
    values = parse(worker, of_worker["command"])
    assert values["bundles"] == ("/bundle",)
    grace = float(of_worker["stop_grace_period"].removesuffix("s"))
    assert values["drain"] < grace


def test_the_bundle_is_the_example_unless_another_one_is_named() -> None:
    for service in OURS.values():
        mount = service["volumes"][0]
        default = mount.removeprefix("${BUNDLE:-").partition("}")[0]
        assert (ROOT / "docs" / default / "__init__.py").is_file()


def test_every_process_has_the_same_store_relay_bucket_and_signing_key() -> None:
    environments = [service["environment"] for service in OURS.values()]
    assert len(environments) == 3
    assert all(environment == environments[0] for environment in environments)
    [environment] = environments[:1]
    assert parse_store_url(environment["LOOPLINE_STORE"]).file is None
    assert S3Place.parse(environment["LOOPLINE_BLOBS"]).endpoint == "http://s3:9000"
    relay = urlsplit(str(environment["LOOPLINE_RELAY"]))
    assert RedisRelay(relay.geturl(), "loopline").name == "redis://redis:6379/0"
    assert SERVICES["redis"]["command"][1:3] == ["--requirepass", relay.password]
    assert environment["LOOPLINE_SIGNING_KEY"]


def test_the_image_has_the_extras_and_every_service_and_volume_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for service in OURS.values():
        build = service["build"]
        assert (ROOT / "docs" / build["context"] / build["dockerfile"]).is_file()
        extras = build["args"]["EXTRAS"].split(",")
        assert set(extras) <= project["optional-dependencies"].keys()
        assert service["depends_on"].keys() <= SERVICES.keys()
    assert COMPOSE["volumes"].keys() == {"keys", "database", "bucket"}
