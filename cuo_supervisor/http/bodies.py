"""Bodies that mean one thing: JSON in UTF-8, each member named once."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from cuo_supervisor.core.strict_json import unique

__all__ = ["OneMeaning"]


class _Body(Request):
    async def json(self) -> Any:
        # A byte order mark may stand before it; another encoding than UTF-8 is none of JSON's.
        return json.loads((await self.body()).decode("utf-8-sig"), object_pairs_hook=unique)


class OneMeaning(APIRoute):
    """A route whose JSON body is refused where two readers of it could disagree."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_Body(request.scope, request.receive))

        return strictly
