"""All services of the stand-in as one ASGI application."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nat_finetune.testing.nemo_server.customizer import Customizer
from nat_finetune.testing.nemo_server.datastore import DataStore
from nat_finetune.testing.nemo_server.script import NemoScript
from nat_finetune.testing.nemo_server.serving import Serving
from nat_finetune.testing.nemo_server.state import State


def nemo_app(folder: Path, script: NemoScript | None = None) -> Starlette:
    """The services behind one address; one that is made on the folder of another goes on where that stopped."""
    state, script = State(folder), script or NemoScript()
    parts = (DataStore(state, script), Customizer(state, script), Serving(state, script))
    return Starlette(routes=[route for part in parts for route in part.routes()], exception_handlers={HTTPException: _told})


def _told(request: Request, error: Exception) -> Response:
    """Errors as the services answer them."""
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, str(error))
    return JSONResponse({"detail": detail}, status)
