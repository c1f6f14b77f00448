"""Tokens of an issuer: its keys rotate, and whatever is wrong with a token, nobody is let in by it."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from hashlib import sha256
from time import sleep
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from loopline import LooplineError
from loopline.server import TokenUsers, Unauthenticated
from loopline.testing import FakeClock
from tests.support.local_http import Answering, http_server

AUDIENCE = "loopline"
NOW = 1_800_000_000
LATER = 4_000_000_000


@dataclass(slots=True)
class Issuer:
    """An issuer of tokens with keys by id, and how often it was asked for them."""

    url: str = ""
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(
        default_factory=dict[str, ec.EllipticCurvePrivateKey]
    )
    asked: int = 0
    is_down: bool = False
    answer: bytes = b""
    pause: float = 0.0

    def rotate(self, key_id: str) -> None:
        """Have one new key alone."""
        self.keys = {key_id: ec.generate_private_key(ec.SECP256R1())}

    def document(self, path: str) -> dict[str, Any]:
        """What is at a path."""
        if path.endswith("openid-configuration"):
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.asked += 1
        algorithm = jwt.get_algorithm_by_name("ES256")
        rows = {
            name: json.loads(algorithm.to_jwk(key.public_key())) for name, key in self.keys.items()
        }
        uses: dict[str, dict[str, Any]] = {"enc": {"use": "enc"}, "signing": {"key_ops": ["sign"]}}
        own = {"k1": {"use": "sig", "key_ops": ["verify"]}, **uses}
        return {
            "keys": [
                {**row, "kid": name, "alg": "ES256", **own.get(name, {})}
                for name, row in rows.items()
            ]
        }

    def token(self, key_id: str = "k1", **changed: Any) -> str:
        """A token of ann, with other claims; those that are None are left out."""
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "exp": LATER,
            "tenant": "acme",
            "project": "tea",
            "roles": ["privileged"],
            **changed,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.keys[key_id], "ES256", headers={"kid": key_id})


@pytest.fixture
def issuer() -> Generator[Issuer]:
    made = Issuer()
    made.rotate("k1")

    class Handler(Answering):
        def get(self) -> None:
            if made.is_down:
                made.asked += 1
                self.send_error(503)
                return
            sleep(made.pause)
            self.answer(made.answer or json.dumps(made.document(self.path)).encode())

    with http_server(Handler) as made.url:
        yield made


async def test_a_token_says_who_its_user_is(issuer: Issuer) -> None:
    ann = await TokenUsers(issuer.url, AUDIENCE).authenticate(issuer.token())
    assert (ann.tenant, ann.project, ann.user) == ("acme", "tea", "ann")
    assert ann.is_privileged


async def test_keys_are_fetched_once_and_again_when_they_rotate(issuer: Issuer) -> None:
    clock = FakeClock()
    users = TokenUsers(issuer.url, AUDIENCE, clock=clock)
    old = issuer.token()
    for _ in range(3):
        await users.authenticate(old)
    assert issuer.asked == 1
    issuer.rotate("k2")
    with pytest.raises(Unauthenticated):
        await users.authenticate(issuer.token("k2"))  # so soon, the issuer is not asked again
    await clock.sleep(11)
    assert (await users.authenticate(issuer.token("k2"))).user == "ann"
    with pytest.raises(Unauthenticated):
        await users.authenticate(old)
    assert issuer.asked == 2


async def test_an_issuer_that_is_down_is_asked_once_in_a_while_and_nobody_is_let_in(
    issuer: Issuer,
) -> None:
    clock = FakeClock()
    users = TokenUsers(issuer.url, AUDIENCE, clock=clock)
    token = issuer.token()
    issuer.is_down = True
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            await users.authenticate(token)
    assert issuer.asked == 1
    issuer.is_down = False
    await clock.sleep(11)
    assert (await users.authenticate(token)).user == "ann"
    issuer.is_down = True
    await clock.sleep(11)
    issuer.keys["k2"] = issuer.keys["k1"]
    with pytest.raises(Unauthenticated):
        await users.authenticate(issuer.token("k2"))
    assert (await users.authenticate(token)).user == "ann", "a key that is not known costs no other"


async def test_an_issuer_whose_document_is_nested_too_deeply_lets_nobody_in(issuer: Issuer) -> None:
    issuer.answer = b"[" * 100_000
    with pytest.raises(Unauthenticated):
        await TokenUsers(issuer.url, AUDIENCE).authenticate(issuer.token())


def unsigned(issuer: Issuer) -> str:
    head = part({"alg": "none", "typ": "JWT", "kid": "k1"})
    return f"{head}.{issuer.token().split('.')[1]}."


def signed_with_the_public_key(issuer: Issuer) -> str:
    """A token whose shared secret is what everybody can read."""
    public = (
        issuer.keys["k1"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    body = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{issuer.token().split('.')[1]}"
    mac = hmac.new(public, body.encode(), sha256).digest()
    return f"{body}.{urlsafe_b64encode(mac).decode().rstrip('=')}"


def part(value: dict[str, str]) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def swapped(issuer: Issuer) -> str:
    """A token that another key signed under the id of the right one."""
    other = ec.generate_private_key(ec.SECP256R1())
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    return jwt.encode(claims, other, "ES256", headers={"kid": "k1"})


def with_its_own_key(issuer: Issuer) -> str:
    """A token that brings the key it was signed with."""
    other = ec.generate_private_key(ec.SECP256R1())
    row = json.loads(jwt.get_algorithm_by_name("ES256").to_jwk(other.public_key()))
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    return jwt.encode(claims, other, "ES256", headers={"kid": "k1", "jwk": row})


def with_another_key(issuer: Issuer, key_id: str) -> str:
    """A token that another key of the issuer signed."""
    issuer.keys[key_id] = ec.generate_private_key(ec.SECP256R1())
    return issuer.token(key_id)


WRONG: dict[str, Callable[[Issuer], str]] = {
    "no token": lambda issuer: "",
    "no JSON Web Token": lambda issuer: "a.b.c",
    "too long": lambda issuer: issuer.token(more="x" * 9_000),
    "expired": lambda issuer: issuer.token(exp=NOW - 1_000_000_000),
    "not yet": lambda issuer: issuer.token(nbf=LATER - 1),
    "another audience": lambda issuer: issuer.token(aud="other"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "another issuer": lambda issuer: issuer.token(iss="https://evil.example"),
    "for ever": lambda issuer: issuer.token(exp=None),
    "nobody": lambda issuer: issuer.token(sub=None),
    "no tenant": lambda issuer: issuer.token(tenant=None),
    "a blank tenant": lambda issuer: issuer.token(tenant=" "),
    "many tenants": lambda issuer: issuer.token(tenant=["acme", "other"]),
    "no project": lambda issuer: issuer.token(project=None),
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "another key under its id": swapped,
    "a key of its own": with_its_own_key,
    "a key for encryption": lambda issuer: with_another_key(issuer, "enc"),
    "a key that only signs": lambda issuer: with_another_key(issuer, "signing"),
    "an end as text": lambda issuer: issuer.token(exp=str(LATER)),
    "an end that is true": lambda issuer: issuer.token(exp=True),
    "a begin as text": lambda issuer: issuer.token(nbf="1"),
    "NUL in the user": lambda issuer: issuer.token(sub="ann\0"),
    "a line end in the user": lambda issuer: issuer.token(sub="ann\nroot"),
    "an escape in the tenant": lambda issuer: issuer.token(tenant="ac\x1b[2Jme"),
    "cut": lambda issuer: issuer.token()[:-2],
    "changed": lambda issuer: issuer.token().replace(".", ".e", 1),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_token_lets_nobody_in(issuer: Issuer, what: str) -> None:
    token = WRONG[what](issuer)
    with pytest.raises(Unauthenticated) as refused:
        await TokenUsers(issuer.url, AUDIENCE).authenticate(token)
    assert not token or token not in str(refused.value)


async def test_while_the_issuer_is_gone_nobody_is_let_in() -> None:
    issuer = Issuer(url="http://127.0.0.1:9")
    issuer.rotate("k1")
    with pytest.raises(Unauthenticated, match="cannot be fetched"):
        await TokenUsers(issuer.url, AUDIENCE).authenticate(issuer.token())


@pytest.mark.parametrize("url", ["http://issuer.example", "issuer.example", "file:///keys"])
def test_an_issuer_that_others_could_impersonate_is_refused(url: str) -> None:
    with pytest.raises(LooplineError, match="https://"):
        TokenUsers(url, AUDIENCE)


async def interrupted(users: TokenUsers, token: str) -> None:
    """Authenticate a token, and give up before the issuer has answered."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await users.authenticate(token)


async def test_a_caller_that_does_not_wait_leaves_the_fetch_of_the_keys_to_all_others(
    issuer: Issuer,
) -> None:
    users = TokenUsers(issuer.url, AUDIENCE)
    issuer.pause = 0.2
    await interrupted(users, issuer.token())
    assert (await users.authenticate(issuer.token())).user == "ann"
    assert issuer.asked == 1


def test_a_fetch_of_the_keys_that_was_cancelled_is_tried_again_at_once(issuer: Issuer) -> None:
    users = TokenUsers(issuer.url, AUDIENCE)
    issuer.pause = 0.2
    asyncio.run(interrupted(users, issuer.token()))  # the end of the event loop cancels the fetch
    issuer.pause = 0.0
    assert asyncio.run(users.authenticate(issuer.token())).user == "ann"
