"""Spending: what a conversation's requests to models used and cost, read off its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loopline.models import Usage, find_model_facts
from loopline.timeline.blocks import Block, BodyUnion, Decision, RunChild, ToolsSelected
from loopline.timeline.prompt_blocks import ModelSwitched, RangeSummary, SwitchCause

SpendingBody = Decision | ModelSwitched | ToolsSelected | RangeSummary | RunChild
"""What says that a request to a model is over."""
_SPENDING = BodyUnion[SpendingBody](SpendingBody)

CostPurpose = Literal["decision", "answer", "selection", "summary", "child"] | SwitchCause
"""What was asked for. A "refusal" was one, an "unavailable" model gave none, and a "child" is a whole run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """What one request used, by the block that says so.

    `cost` is in US dollars, None where nobody knows a price. It is `estimated` where none was recorded:
    then it is by the price that is known now.
    """

    block: Block
    purpose: CostPurpose
    model: str
    usage: Usage
    cost: float | None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """Several requests together.

    `cost` is what is known of it, in US dollars, None when nothing is. No price is known of so many as
    `unknown` says; `estimated` counts those whose cost is.
    """

    requests: int
    usage: Usage
    cost: float | None
    unknown: int
    estimated: int

    @classmethod
    def of(cls, requests: Iterable[RequestCost]) -> CostSummary:
        """Their sum."""
        request_list = list(requests)
        costs = [one.cost for one in request_list if one.cost is not None]
        return cls(
            requests=len(request_list),
            usage=sum((one.usage for one in request_list), Usage()),
            cost=sum(costs) if costs else None,
            unknown=len(request_list) - len(costs),
            estimated=sum(one.estimated for one in request_list),
        )


def request_cost(block: Block) -> RequestCost | None:
    """What a block says of a request that was over with it; None where it says nothing of one.

    The run of a child counts once, where it has ended.
    """
    body = block.body
    if not _SPENDING.has(body):
        return None
    match body:
        case Decision(model="") | RunChild(reason=""):
            return None
        case Decision(model=model, purpose=purpose, usage=usage, cost=cost):
            return _priced(block, purpose, model, usage, cost)
        case ModelSwitched(model=model, why=why, usage=usage, cost=cost):
            return _priced(block, why, model, usage, cost)
        case ToolsSelected(model=model, usage=usage, cost=cost):
            return _priced(block, "selection", model, usage, cost)
        case RangeSummary(model=model, usage=usage, cost=cost):
            requested = model or usage != Usage()
            return _priced(block, "summary", model, usage, cost) if requested else None
        case RunChild(usage=usage, cost=cost):
            return RequestCost(block=block, purpose="child", model="", usage=usage, cost=cost)


def _priced(
    block: Block, purpose: CostPurpose, model: str, usage: Usage, cost: float | None
) -> RequestCost:
    price = find_model_facts(model).price if cost is None else None
    return RequestCost(
        block=block,
        purpose=purpose,
        model=model,
        usage=usage,
        cost=cost if price is None else price.of(usage),
        estimated=price is not None,
    )
