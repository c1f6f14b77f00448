"""The rules by which calls run without a question, computed from the blocks of all conversations of a user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from loopline.errors import LooplineError
from loopline.models import JsonObject
from loopline.timeline.blocks import Block, BodyUnion, Entry
from loopline.timeline.bodies import ApprovalRule, RuleScope
from loopline.timeline.log import ConversationKey, TimelineLog, UserBlocks

_RULES = BodyUnion[ApprovalRule](ApprovalRule)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedRule:
    """A rule of the user, the name of the conversation that granted it, and the time and turn of the grant.

    With `arguments` None it is for calls with any arguments.
    """

    rule_id: str
    tool: str
    arguments: JsonObject | None
    scope: RuleScope
    bundle: str
    until: datetime | None
    conversation: str
    turn: int
    ts: datetime

    def covers(self, tool: str, arguments: JsonObject) -> bool:
        """Return whether a call with these arguments is one of the rule."""
        return self.tool == tool and self.arguments in (None, arguments)


class ApprovalRules:
    """The rules in a log. A revoked rule is not returned, but its block stays in the log of its conversation."""

    def __init__(self, log: TimelineLog) -> None:
        self._log = log
        self._blocks = UserBlocks(log, [ApprovalRule.type])

    async def of(self, conversation: ConversationKey, now: datetime) -> list[GrantedRule]:
        """Return the rules that are valid in a conversation at the time `now`, oldest first.

        These are the user's rules of the scope "user", for any bundle, and the rules that the log of this conversation
        has. Revoked rules and rules that have expired are left out.
        """
        newest: dict[str, tuple[ConversationKey, Block, ApprovalRule]] = {}
        here = set[str]()
        blocks = await self._blocks.of_user(
            user=conversation.user, project=conversation.project, tenant=conversation.tenant
        )
        for key, block in blocks:
            if not _RULES.has(block.body):
                continue
            rule_id = block.body.rule_id
            if key == conversation:  # a fork has the rules of its past too
                here.add(rule_id)
            before = newest.get(rule_id)
            if (  # within a conversation the order of the log counts, not the clocks of its processes
                before is None
                or before[0] == key
                or (before[1].ts, before[1].seq) < (block.ts, block.seq)
            ):
                newest[rule_id] = key, block, block.body
        rules = [
            _granted(key, block, rule)
            for key, block, rule in newest.values()
            if rule.tool
            and (rule.scope == "user" or rule.rule_id in here)
            and (rule.until is None or now < rule.until)
        ]
        return sorted(rules, key=lambda rule: (rule.ts, rule.rule_id))

    async def revoke(self, conversation: ConversationKey, rule_id: str, now: datetime) -> None:
        """Revoke a rule that is valid in a conversation. A call that has started is not stopped.

        Raises:
            LooplineError: no valid rule has that id; the message lists the ids of the valid rules.
        """
        rules = await self.of(conversation, now)
        for rule in rules:
            if rule.rule_id == rule_id:
                origin = await self._find_origin(conversation, rule)
                summary = await self._log.find(origin)
                head = 0 if summary is None else summary.head
                revoked = ApprovalRule(rule_id=rule_id)
                await self._log.append(origin, [Entry(body=revoked, turn=rule.turn)], seen=head)
                return
        rule_ids = ", ".join(rule.rule_id for rule in rules) or "none"
        raise LooplineError(f"no rule {rule_id!r} counts here: there are {rule_ids}")

    async def _find_origin(
        self, conversation: ConversationKey, rule: GrantedRule
    ) -> ConversationKey:
        """Return the conversation that granted a rule; the conversation that the rule names if its block is not found.

        Its forks have the rule too, but are skipped, because they may be forgotten before it.
        """
        blocks = await self._blocks.of_user(
            user=conversation.user, project=conversation.project, tenant=conversation.tenant
        )
        for key, block in blocks:
            if _RULES.has(block.body) and block.body.rule_id == rule.rule_id:
                summary = await self._log.find(key)
                if summary is not None and block.seq > summary.inherited:
                    return key
        return structs.replace(conversation, name=rule.conversation)


def _granted(key: ConversationKey, block: Block, rule: ApprovalRule) -> GrantedRule:
    """Combine a rule with the conversation, turn and time of the block that recorded it."""
    return GrantedRule(
        rule_id=rule.rule_id,
        tool=rule.tool,
        arguments=rule.arguments,
        scope=rule.scope,
        bundle=rule.bundle,
        until=rule.until,
        conversation=key.name,
        turn=block.turn,
        ts=block.ts,
    )
