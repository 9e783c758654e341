"""What handlers share: who may ask, the body, and a list in pages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nat_finetune.testing.nemo_server.bodies import Body, checked

Handler = Callable[[Request], Awaitable[Response]]
BodyT = TypeVar("BodyT", bound=Body)
NOW = "2026-01-02T03:04:05.000000Z"
"""No clock: the same requests have the same answers."""


def guarded(handler: Handler, token: str | None) -> Handler:
    """The handler behind a bearer token, where one is asked for; a bearer without one is no header."""

    async def asked(request: Request) -> Response:
        given = request.headers.get("authorization")
        if given is not None and given.strip().lower() in ("bearer", "basic", ""):
            raise HTTPException(400, detail="malformed Authorization header")
        if token is not None and given != f"Bearer {token}":
            raise HTTPException(401, detail="a valid bearer token is needed")
        return await handler(request)

    return asked


async def body_of(request: Request, model: type[BodyT], kind: str = "application/json") -> BodyT:
    """The JSON body of a request, checked."""
    if request.headers.get("content-type", "").partition(";")[0] != kind:
        raise HTTPException(415, detail=f"expected {kind}, found {request.headers.get('content-type')}")
    try:
        value = json.loads(await request.body())
    except ValueError as error:
        raise HTTPException(400, detail=f"no JSON: {error}") from None
    return checked(model, value)


def paged(request: Request, entries: Iterable[Any], limit: int) -> JSONResponse:
    """A page of a list, newest first where it is asked for."""
    found = list(entries)
    if request.query_params.get("sort") == "-created_at":
        found.reverse()
    page = _number(request, "page", 1)
    size = min(_number(request, "page_size", 10), limit)
    pagination = {
        "page": page,
        "page_size": size,
        "current_page_size": len(found[(page - 1) * size : page * size]),
        "total_pages": -(-len(found) // size),
        "total_results": len(found),
    }
    return JSONResponse({"object": "list", "data": found[(page - 1) * size : page * size], "pagination": pagination})


def there(entry: dict[str, Any] | None, what: str) -> dict[str, Any]:
    """An entry; 404 where there is none."""
    if entry is None:
        raise HTTPException(404, detail=f"{what} not found")
    return entry


def free(entries: dict[str, Any], name: str, what: str) -> None:
    """409 where the name is taken."""
    if name in entries:
        raise HTTPException(409, detail=f"{what} {name} already exists")


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise HTTPException(422, detail=f"{name} must be a whole number above 0, found {text!r}")
    return int(text)
