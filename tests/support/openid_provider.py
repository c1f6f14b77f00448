"""A small OpenID provider on the loopback: a page that signs ann in at once, codes with PKCE, and signed tokens."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.local_http import Answering, http_server

CLIENT = "page"
LATER = 4_000_000_000


@dataclass(slots=True)
class Provider:
    """A provider. `codes` are the codes that it has given out, each with its challenge and its address."""

    url: str = ""
    audience: str = "loopline"
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    codes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    refuses: str = ""
    asked: int = 0
    """How often the provider was asked for its configuration."""

    def document(self, path: str) -> dict[str, Any]:
        if path.endswith("openid-configuration"):
            self.asked += 1
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }
        algorithm = jwt.get_algorithm_by_name("ES256")
        row = json.loads(algorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**row, "kid": "k1", "alg": "ES256"}]}

    def authorize(self, query: dict[str, list[str]]) -> str:
        """Return the address to which a person returns after the login."""
        [address], [state] = query["redirect_uri"], query["state"]
        assert (query["client_id"], query["response_type"]) == ([CLIENT], ["code"])
        assert query["code_challenge_method"] == ["S256"]
        if self.refuses:
            return f"{address}?{urlencode({'error': 'access_denied', 'error_description': self.refuses, 'state': state})}"
        code = token_hex(16)
        self.codes[code] = (query["code_challenge"][0], address)
        return f"{address}?{urlencode({'code': code, 'state': state})}"

    def tokens(self, form: dict[str, list[str]]) -> dict[str, Any] | None:
        """Return the tokens for a code, which counts once; None if the code, verifier or address is wrong."""
        challenge, address = self.codes.pop(form["code"][0], ("", ""))
        digest = sha256(form["code_verifier"][0].encode()).digest()
        is_right = urlsafe_b64encode(digest).decode().rstrip("=") == challenge
        if not is_right or form["redirect_uri"] != [address] or form["client_id"] != [CLIENT]:
            return None
        claims = {
            "iss": self.url,
            "aud": self.audience,
            "sub": "ann",
            "exp": LATER,
            "tenant": "default",
            "project": "default",
        }
        token = jwt.encode(claims, self.key, "ES256", headers={"kid": "k1"})
        return {"access_token": "opaque", "id_token": token, "token_type": "Bearer"}


@contextmanager
def openid_provider() -> Generator[Provider]:
    provider = Provider()

    class Handler(Answering):
        def get(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", provider.authorize(parse_qs(parts.query)))
                self.end_headers()
                return
            self.answer(json.dumps(provider.document(parts.path)).encode())

        def post(self) -> None:
            tokens = provider.tokens(parse_qs(self.body().decode()))
            document = json.dumps(tokens or {"error": "invalid_grant"})
            self.answer(document.encode(), status=400 if tokens is None else 200)

    with http_server(Handler) as provider.url:
        yield provider
