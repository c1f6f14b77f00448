"""Routes for operators and clients: health, readiness, metrics, and the principal of a token."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel

from loopline.errors import StoreError, StoreFailed
from loopline.server.access import CallerDep, HostDep
from loopline.server.metrics import MEDIA_TYPE
from loopline.server.problems import PROBLEMS, RequestProblem, unavailable

router: APIRouter = APIRouter(tags=["health"], responses=PROBLEMS)


class HealthAnswer(BaseModel):
    """The health of the server."""

    status: str


@router.get("/health")
async def health() -> HealthAnswer:
    """Answer that the process runs."""
    return HealthAnswer(status="ok")


@router.get("/ready")
async def ready(host: HostDep) -> HealthAnswer:
    """Answer that the bundles are open, the server accepts turns and the store works; otherwise 503."""
    if host.draining.is_set() or not host.is_open:
        raise unavailable("the server is starting or shutting down")
    for harness in host.harnesses:
        try:
            await harness.log.check()
        except StoreError as error:
            raise RequestProblem(
                HTTPStatus.SERVICE_UNAVAILABLE, _reason(error), action_by="operator"
            ) from error
    return HealthAnswer(status="ready")


def _reason(error: StoreError) -> str:
    """Return the reason why the store does not work. The path of the store is left out, because this route is public."""
    if isinstance(error, StoreFailed):
        return "the disk of the store has failed: restart the server once the disk works"
    return "the store cannot be used now: its file is missing or was replaced, or too many files are open"


class PrincipalAnswer(BaseModel):
    """The sender of a request by its token, and the served bundles."""

    tenant: str
    project: str
    user: str
    roles: list[str]
    bundles: list[str]


@router.get("/me")
async def read_principal(host: HostDep, caller: CallerDep) -> PrincipalAnswer:
    """Return the principal of the token. A client needs its tenant and project for paths."""
    return PrincipalAnswer(
        tenant=caller.tenant,
        project=caller.project,
        user=caller.user,
        roles=sorted(caller.roles),
        bundles=[harness.bundle.id for harness in host.harnesses],
    )


@router.get("/metrics", response_class=PlainTextResponse)
async def read_metrics(host: HostDep, caller: CallerDep) -> Response:
    """Return the metrics in the text format of Prometheus."""
    del caller
    gauges = {"running_turns": host.running_turns, "listeners": host.listeners.count}
    open_turns = await host.count_open_turns()
    return Response(host.metrics.text(gauges, open_turns), media_type=MEDIA_TYPE)
