"""URLs of files that are signed and expire."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote, urlencode

from loopline.clock import Clock
from loopline.refs import HostedRef
from loopline.timeline import ConversationKey, FileAdded, hosted_name

PATH = "/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSigner:
    """Signs the URLs of files, which are valid for `seconds`. They begin with `base`, the URL or path of the app."""

    key: bytes = field(repr=False)
    clock: Clock
    seconds: int
    base: str = ""

    def begin(self, path: str) -> str:
        """Return the URL of a path of the app where the public URL is known, else the path as it was requested."""
        return f"{self.base.rstrip('/')}{path}"

    def of_turn(self, key: ConversationKey, turn_id: str) -> str:
        """Return the public URL of a turn, empty if the app does not know its own."""
        names = "/".join(quote(name, safe="") for name in (key.tenant, key.project, key.name))
        return self.base and self.begin(f"/conversations/{names}/turns/{turn_id}")

    def host_file(self, name: HostedRef, file: FileAdded) -> str:
        """Return the URL of a file, which is served as long as its conversation has it."""
        del file
        return f"{self.begin(PATH)}?{self.query(name)}"

    def of_conversation(self, conversation: ConversationKey) -> Callable[[str, FileAdded], str]:
        """Return what makes the URL of a file of a turn in that conversation."""

        def url(turn_id: str, file: FileAdded) -> str:
            return self.host_file(hosted_name(conversation, turn_id, file), file)

        return url

    def query(self, name: HostedRef) -> str:
        """Return the query of the URL of a file, with its expiry and its signature."""
        expires = int(self.clock.now().timestamp()) + self.seconds
        rn = str(name)
        fields = {"rn": rn, "expires": f"{expires}", "signature": self._signature(rn, expires)}
        return urlencode(fields)

    def is_valid(self, rn: str, expires: int, signature: str) -> bool:
        """Return whether a URL was signed here, and has not expired."""
        expected = self._signature(rn, expires)
        is_signed = hmac.compare_digest(signature, expected)
        return is_signed and expires > self.clock.now().timestamp()

    def _signature(self, rn: str, expires: int) -> str:
        text = f"{expires}\n{rn}".encode(errors="surrogatepass")
        return hmac.new(self.key, text, sha256).hexdigest()
