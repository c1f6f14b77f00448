"""Properties: a configuration, a file over it, and what the caller sets over both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from loopline.bundle import Properties, Setting, TypedValue, merged, parse_setting
from loopline.errors import PropertyError
from loopline.models import Json
from tests.authoring.bundle_files import write

CONFIGURATION: dict[str, Json] = {
    "shop": {"url": "https://example.org", "limit": 5, "rate": 0.5, "open": True, "tags": ["a"]},
    "title": None,
    "models": {},
}
KNOWLEDGE: dict[str, Setting] = {
    "repositories": {},
    "repo": "",
    "ref": "HEAD",
    "docs_root": "",
    "src_root": "",
    "deploy_root": "",
    "tests_root": "",
    "validate_refs": True,
    "embedder": "",
    "wait": False,
}


def given(
    overrides: Mapping[str, Setting] | None = None, yaml: str = "", folder: Path | None = None
) -> Properties:
    if folder is not None:
        write(folder, {"loopline.yaml": yaml})
    return merged(CONFIGURATION, folder=folder, overrides=overrides)


def complaint(
    overrides: Mapping[str, Setting] | None = None, yaml: str = "", folder: Path | None = None
) -> str:
    with pytest.raises(PropertyError) as raised:
        given(overrides, yaml, folder)
    return str(raised.value)


def typed(*settings: str) -> Properties:
    return given(dict(parse_setting(setting) for setting in settings))


def test_a_configuration_gives_the_defaults(tmp_path: Path) -> None:
    properties = merged(CONFIGURATION, folder=tmp_path)
    assert properties.at("shop.limit") == 5
    assert properties.section("shop") == CONFIGURATION["shop"]


def test_a_file_wins_over_the_configuration_key_by_key(tmp_path: Path) -> None:
    properties = given(yaml="shop:\n  limit: 7\n", folder=tmp_path)
    assert properties.at("shop.limit") == 7
    assert properties.at("shop.url") == "https://example.org"


def test_an_override_wins_over_the_file(tmp_path: Path) -> None:
    properties = given({"shop.limit": 9}, "shop:\n  limit: 7\n  rate: 1\n", tmp_path)
    assert properties.at("shop.limit") == 9
    assert properties.at("shop.rate") == 1


def test_an_override_may_be_a_section_or_a_path() -> None:
    properties = given({"shop": {"limit": 9}, "knowledge.repo": cast("Json", Path("a/b"))})
    assert properties.at("shop.limit") == 9
    assert properties.at("shop.open") is True
    assert properties.at("knowledge.repo") == "a/b"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert given(yaml="# nothing yet\n", folder=tmp_path).tree == given().tree


def test_every_bundle_knows_the_keys_of_knowledge() -> None:
    assert merged({}).section("knowledge") == KNOWLEDGE
    assert merged({"knowledge": {"docs_root": "docs"}}).at("knowledge.docs_root") == "docs"


def test_whether_somebody_wrote_of_knowledge_is_known(tmp_path: Path) -> None:
    assert "knowledge" not in merged({"a": 1}).written
    assert "knowledge" in merged({"knowledge": {}}).written
    assert "knowledge" in merged({}, overrides={"knowledge.repo": "x"}).written
    assert "knowledge" in given(yaml="knowledge:\n  repo: x\n", folder=tmp_path).written


def test_a_name_that_is_not_there_gives_the_default() -> None:
    properties = given()
    assert properties.at("shop.limits", 3) == 3
    assert properties.at("shop.limit.more", 4) == 4
    assert properties.at("nothing") is None
    assert properties.section("shop.limit") == {}


def test_a_default_of_nothing_takes_anything() -> None:
    assert given({"title": [1, {"a": None}]}).at("title") == [1, {"a": None}]


def test_below_an_empty_section_everything_is_accepted(tmp_path: Path) -> None:
    properties = given({"models.fast": "b"}, "models:\n  slow: {size: 3}\n", tmp_path)
    assert properties.at("models") == {"slow": {"size": 3}, "fast": "b"}


def test_every_value_has_a_dotted_name() -> None:
    assert merged({"a": {"b": {"c": 1}, "d": [2]}, "e": {}}).flat() == {
        "a.b.c": 1,
        "a.d": [2],
        "e": {},
        **{f"knowledge.{key}": value for key, value in KNOWLEDGE.items()},
    }


def test_what_is_read_can_be_changed_without_changing_the_properties() -> None:
    properties = given()
    properties.section("shop").clear()
    tags = properties.flat()["shop.tags"]
    assert isinstance(tags, list)
    tags.clear()
    assert properties.at("shop.tags") == ["a"]


def test_what_is_typed_takes_the_type_of_the_default() -> None:
    properties = typed("shop.limit=7", "shop.open=no", "shop.tags=[x, y]", "title=2.5")
    assert [properties.at(f"shop.{name}") for name in ("limit", "open", "tags")] == [
        7,
        False,
        ["x", "y"],
    ]
    assert properties.at("title") == 2.5


@pytest.mark.parametrize("text", ["12e4567", "1234567", "2026-01-01", "yes", "a: b: c", "", "[x"])
def test_what_is_typed_for_a_text_stays_a_text(text: str) -> None:
    assert typed(f"knowledge.ref={text}").at("knowledge.ref") == text


def test_what_is_typed_may_hold_an_equals_sign() -> None:
    assert parse_setting("shop.url = a=b ") == ("shop.url", TypedValue("a=b"))


@pytest.mark.parametrize("setting", ["shop.url", "=x", " =x"])
def test_what_is_typed_without_a_name_and_a_value_is_refused(setting: str) -> None:
    with pytest.raises(PropertyError, match="write it as name=value"):
        parse_setting(setting)


def test_what_is_typed_and_no_value_is_refused() -> None:
    assert complaint(dict([parse_setting("shop.limit=[")])).startswith("shop.limit: expected")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"shop.limits": 3}, "no property 'shop.limits', nearest is 'shop.limit'"),
        ({"shpo.limit": 3}, "no property 'shpo', nearest is 'shop'"),
        ({"docs_root": "x"}, "no property 'docs_root', nearest is 'knowledge.docs_root'"),
        ({"knowledge.rep": "x"}, "no property 'knowledge.rep', nearest is 'knowledge.repo'"),
        ({"shop": {"limits": 3}}, "no property 'shop.limits', nearest is 'shop.limit'"),
        ({"shop.": 3}, "'shop.' is not a name: write it as section.key"),
        ({"shop.limit": "5"}, "shop.limit must be a whole number, not '5'"),
        ({"shop.limit": True}, "shop.limit must be a whole number, not True"),
        ({"shop.limit": 1.5}, "shop.limit must be a whole number, not 1.5"),
        ({"shop.rate": "x"}, "shop.rate must be a number, not 'x'"),
        ({"shop.open": 1}, "shop.open must be true or false, not 1"),
        ({"shop.url": 3}, "shop.url must be a text, not 3"),
        ({"shop.url": None}, "shop.url must be a text, not None"),
        ({"shop.tags": "x"}, "shop.tags must be a list, not 'x'"),
        ({"shop": "x"}, "shop must be a section, not 'x'"),
        ({"models": None}, "models must be a section, not None"),
        ({"shop.limit": {"a": 1}}, "shop.limit must be a whole number, not {'a': 1}"),
        ({"models": {"a.b": 1}}, "'a.b' has a dot: write a section in a section"),
        ({"models.x": {1}}, "models.x: {1} is not a JSON value"),
    ],
)
def test_a_wrong_override_is_told(overrides: dict[str, Setting], message: str) -> None:
    assert complaint(overrides) == message


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("shop:\n  limits: 3\n", "2: no property 'shop.limits', nearest is 'shop.limit'"),
        ("title: x\n\nshop:\n  url: a\n  limit: x\n", "5: shop.limit must be a whole number"),
        ("knowledge.repo: x\n", "1: 'knowledge.repo' has a dot: write a section in a section"),
        ("shop: [\n", "2: expected the node content"),
        ("- a\n", "1: write sections and keys, such as `knowledge:`"),
        ("shop:\n  limit: 1\n  limit: 2\n", "3: 'limit' is given twice"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, yaml: str, message: str) -> None:
    assert complaint(None, yaml, tmp_path).startswith(f"{tmp_path / 'loopline.yaml'}:{message}")


def test_a_file_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    (tmp_path / "loopline.yaml").write_bytes(b"title: \xff\n")
    with pytest.raises(PropertyError, match=r"loopline\.yaml:1: not UTF-8"):
        merged(CONFIGURATION, folder=tmp_path)


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"knowledge": {"docs_rot": "x"}}, "configuration: no property 'knowledge.docs_rot', near"),
        ({"knowledge": "x"}, "configuration: knowledge must be a section, not 'x'"),
        ({"knowledge": {"validate_refs": "no"}}, "configuration: knowledge.validate_refs must be"),
        ({"a": {"b": {1, 2}}}, "a.b: {1, 2} is not a JSON value"),
        ({"a.b": 1}, "configuration: 'a.b' has a dot: write a section in a section"),
        ({"a": cast("Json", {1: 2})}, "a: the key 1 must be a text"),
    ],
)
def test_a_wrong_configuration_is_told(configuration: dict[str, Json], message: str) -> None:
    with pytest.raises(PropertyError) as raised:
        merged(configuration)
    assert str(raised.value).startswith(message)
