"""The usage and cost of a conversation's requests to models, read from its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loopline.models import Usage, find_model_facts
from loopline.timeline.blocks import Block, BodyUnion
from loopline.timeline.bodies import Decision, Lesson, RunChild, SearchExpanded, ToolsSelected
from loopline.timeline.prompt_blocks import ModelSwitched, RangeSummary, SwitchCause

PricedBody = (
    Decision | ModelSwitched | ToolsSelected | RangeSummary | RunChild | SearchExpanded | Lesson
)
"""The bodies with the usage of a request to a model."""
_PRICED = BodyUnion[PricedBody](PricedBody)

CostPurpose = (
    Literal["decision", "answer", "selection", "summary", "search", "lesson", "child"] | SwitchCause
)
"""The purpose of a request. A "refusal" or an "unavailable" model did not answer; a "child" is a full run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """The usage and cost of one request, and the block that records it.

    `cost` is in US dollars, None if the price is unknown. `estimated` is true if no cost was recorded and today's price
    was used.
    """

    block: Block
    purpose: CostPurpose
    model: str
    usage: Usage
    cost: float | None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """The sums over several requests.

    `cost` is the sum of the known costs in US dollars, None if none is known. `unknown` counts the requests without
    a known price, `estimated` those whose cost is an estimate.
    """

    requests: int
    usage: Usage
    cost: float | None
    unknown: int
    estimated: int

    @classmethod
    def of(cls, requests: Iterable[RequestCost]) -> CostSummary:
        """Return the sums of these requests. `cost` is the sum of the known costs, and None if no cost is known."""
        request_list = list(requests)
        costs = [request.cost for request in request_list if request.cost is not None]
        return cls(
            requests=len(request_list),
            usage=sum((request.usage for request in request_list), Usage()),
            cost=sum(costs) if costs else None,
            unknown=len(request_list) - len(costs),
            estimated=sum(request.estimated for request in request_list),
        )


def request_cost(block: Block) -> RequestCost | None:
    """Return the cost of the request that this block records, None for other blocks.

    A child run is counted once, in the block of its end. A decision, summary or lesson without a request gives None.
    """
    body = block.body
    if not _PRICED.has(body):
        return None
    match body:
        case Decision(model="") | RunChild(reason=""):
            return None
        case Decision(model=model, purpose=purpose, usage=usage, cost=cost):
            return _price_request(block, purpose, model, usage, cost)
        case ModelSwitched(model=model, why=why, usage=usage, cost=cost):
            return _price_request(block, why, model, usage, cost)
        case ToolsSelected(model=model, usage=usage, cost=cost):
            return _price_request(block, "selection", model, usage, cost)
        case RangeSummary(model=model, usage=usage, cost=cost):
            requested = model or usage != Usage()
            return _price_request(block, "summary", model, usage, cost) if requested else None
        case SearchExpanded(model=model, usage=usage, cost=cost):
            return _price_request(block, "search", model, usage, cost)
        case Lesson(model=model, usage=usage, cost=cost):
            return _price_request(block, "lesson", model, usage, cost) if model else None
        case RunChild(usage=usage, cost=cost):
            return RequestCost(block=block, purpose="child", model="", usage=usage, cost=cost)


def _price_request(
    block: Block, purpose: CostPurpose, model: str, usage: Usage, cost: float | None
) -> RequestCost:
    """Return the cost of a request; if `cost` is None, use today's price of the model, None if that is unknown."""
    price = find_model_facts(model).price if cost is None else None
    return RequestCost(
        block=block,
        purpose=purpose,
        model=model,
        usage=usage,
        cost=cost if price is None else price.of(usage),
        estimated=price is not None,
    )
