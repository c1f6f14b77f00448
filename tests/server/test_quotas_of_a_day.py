"""Quotas of a day: what users and tenants may use, and how a turn is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from loopline import LooplineError
from loopline.clock import SystemClock
from loopline.models import Capabilities, Price, Prompt, Reply, TextDelta, Usage
from loopline.server import ApiKeys, DailyQuotas, Principal, ServerSettings, app
from loopline.server.principals import new_key
from tests.support.clocks import ClockAhead
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

HERE = "/conversations/acme/tea"
USERS = ("ann", "bob")
USED = Usage(input_tokens=900, output_tokens=100)


class BilledEcho(EchoModel):
    """Echoes, for a thousand tokens and a dollar a reply."""

    capabilities = Capabilities(
        window=1_000_000,
        tool_call=True,
        price=Price(input=1_000, output=1_000, cache_read=0, cache_write=0),
    )

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        async for piece in super().stream(prompt):
            yield replace_usage(piece) if isinstance(piece, Reply) else piece


def replace_usage(reply: Reply) -> Reply:
    return Reply(text=reply.text, calls=reply.calls, stop_reason=reply.stop_reason, usage=USED)


class Shop:
    """The clients of a server's users."""

    def __init__(self, clients: dict[str, httpx2.Client]) -> None:
        self.clients = clients

    def say(
        self, user: str, name: str, text: str = "tea", *, key: str = "", background: bool = False
    ) -> httpx2.Response:
        headers = {"Idempotency-Key": key} if key else {}
        body = {"text": text, "background": background}
        return self.clients[user].post(f"{HERE}/{name}/messages", json=body, headers=headers)


@contextmanager
def opened(
    quotas: DailyQuotas, store: str = "memory:", clock: SystemClock | None = None
) -> Generator[Shop]:
    made = {user: new_key(Principal(tenant="acme", project="tea", user=user)) for user in USERS}
    server = app(
        SHOP,
        store=store,
        auth=ApiKeys([stored for _, stored in made.values()]),
        model=BilledEcho(),
        settings=ServerSettings(quotas=quotas),
        clock=clock,
    )
    with serving(server) as url:
        clients = {
            user: httpx2.Client(
                base_url=url, headers={"Authorization": f"Bearer {made[user][0]}"}, timeout=30
            )
            for user in USERS
        }
        yield Shop(clients)
        for client in clients.values():
            client.close()


TOKENS = DailyQuotas(user_tokens=2_500, turn_tokens=1_000)


def test_the_tokens_of_a_user_last_for_a_day_and_over_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    with opened(TOKENS, store) as shop:
        assert [shop.say("ann", f"c{n}", key="k").status_code for n in range(2)] == [200, 200]
        refused = shop.say("ann", "c2")
        assert (refused.status_code, refused.json()["action_by"]) == (429, "user")
        assert "500 tokens of 2,500 tokens are left" in refused.json()["detail"]
        assert "renewed at" in refused.json()["detail"]
        assert 0 < int(refused.headers["Retry-After"]) <= 86_400
        assert shop.say("ann", "c0", key="k").json()["answer"] == "You said: tea"
        assert shop.clients["ann"].request("DELETE", f"{HERE}/c1").status_code == 200
        assert shop.say("ann", "c3").status_code == 429
        assert shop.say("bob", "c2").status_code == 200
        assert shop.say("bob", "c2").status_code == 200
    with opened(TOKENS, store) as shop:
        assert shop.say("bob", "c2").status_code == 429
    with opened(TOKENS, store, ClockAhead(timedelta(days=1))) as shop:
        assert shop.say("bob", "c2").status_code == 200


def test_the_dollars_of_a_tenant_are_those_of_all_its_users() -> None:
    with opened(DailyQuotas(tenant_cost=2.5, turn_cost=1.0)) as shop:
        assert shop.say("ann", "c1").status_code == 200
        assert shop.say("bob", "c1").status_code == 200
        refused = shop.say("ann", "c1")
        assert refused.status_code == 429
        assert "$0.5000 of $2.5000 are left to your tenant" in refused.json()["detail"]


def test_a_turn_that_runs_reserves_until_it_ends() -> None:
    with opened(DailyQuotas(user_tokens=3_000, turn_tokens=2_000)) as shop:
        ann = shop.clients["ann"]
        sent = shop.say("ann", "slow", "call shop.wait name=30", background=True)
        assert sent.status_code == 202
        refused = shop.say("ann", "other")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert "1 running turns reserve 2,000 tokens" in refused.json()["detail"]
        with ann.stream("GET", f"{HERE}/slow/events") as events:
            for line in events.iter_lines():
                if line == "event: react.tool.call":
                    ann.post(f"{HERE}/slow/stop")
                if line == "event: react.exit":
                    break
        while shop.say("ann", "other").status_code == 429:
            pass  # the exit is stored before the turn's task has ended


def test_a_quota_below_what_a_turn_reserves_is_an_error() -> None:
    with pytest.raises(LooplineError, match="user_tokens is less than a turn reserves"):
        DailyQuotas(user_tokens=10)


def test_quotas_are_written_by_their_names() -> None:
    written = ["user_tokens=200000", "tenant_cost=50"]
    assert DailyQuotas.parse(written) == DailyQuotas(user_tokens=200_000, tenant_cost=50.0)
    assert DailyQuotas.parse([]) == DailyQuotas()
    for wrong in ("users=1", "user_cost", "user_cost=much", "user_cost=nan", "user_cost=-1"):
        with pytest.raises(LooplineError):
            DailyQuotas.parse([wrong])
    with pytest.raises(LooplineError, match="twice"):
        DailyQuotas.parse(["user_cost=1", "user_cost=2"])


def test_what_a_fork_shows_of_its_parent_is_used_once(tmp_path: Path) -> None:
    with opened(TOKENS, f"sqlite:///{tmp_path}/talk.db") as shop:
        assert shop.say("ann", "c0").status_code == 200
        turns = shop.clients["ann"].get(f"{HERE}/c0/blocks").json()["blocks"]
        seq = turns[-1]["seq"]
        for name in ("fork-1", "fork-2"):
            forked = shop.clients["ann"].post(f"{HERE}/c0/fork", json={"seq": seq, "name": name})
            assert forked.status_code == 201
        answered = [shop.say("ann", name).status_code for name in ("fork-1", "c1")]
    assert answered == [200, 429]
