"""The HTTP service: ``POST /predict``, ``GET /healthz`` and ``GET /openapi.json``, for this machine alone."""

import asyncio
import logging
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tdcd.runtime.process.log import event
from tdcd.serving.address import MOST_CONNECTIONS, is_own
from tdcd.serving.scorer import NoPredictionsError, PartsScorer, Refusal

MOST_IDS, MOST_LETTERS, MOST_BODY_BYTES = 10_000, 256, 4 << 20
"""Ids per call, letters of an id, bytes of a request."""
PATIENCE_S = 10.0
"""How long a request may take to arrive."""
LOOK_S = 1.0
"""How often the files are looked at."""


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """What ``POST /predict`` takes."""

    ids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MOST_LETTERS)]], Meta(min_length=1, max_length=MOST_IDS)
    ]


class PredictionAnswer(msgspec.Struct):
    """What ``POST /predict`` gives. Every list is in the order of the ids."""

    predictions: dict[str, list[str | float]]
    """The columns of tdcd predict: prediction and, of classes, probability_CLASS."""
    scores: list[float | list[float]]
    """One number each, or one per class."""
    added: dict[str, list[float | list[float]]]
    """By silo: its phi, or what takes its place. Their sum is the score, unless the model has a head."""
    missing: dict[str, list[str]]
    """By silo that did not speak: the ids for which it did not."""


class ErrorAnswer(msgspec.Struct):
    """What every other answer says."""

    error: str


_questions = msgspec.json.Decoder(Question)
_encoder = msgspec.json.Encoder()


class PredictionService:
    """Answers with the newest scorer; files that were replaced are read again, and bad ones change nothing."""

    def __init__(
        self, files: Callable[[], Sequence[Path]], load: Callable[[], PartsScorer], *, is_private: bool
    ) -> None:
        """Load the first scorer.

        Args:
            files: what ``load`` reads.
            load: raises NoPredictionsError as long as there is nothing to answer from.
            is_private: only processes of this machine can reach it by a network address: requests that name another
                host come from a web page.
        """
        self._files, self._load, self._is_private = files, load, is_private
        self._seen = self._marks()
        self._nothing = ""
        """Why there is no scorer."""
        self.scorer = self._loaded()
        self._refused: dict[str, str] | None = None
        """When and why files were refused; None once they were read."""
        self._report_unused()
        self._schema = _encoder.encode(_openapi())

    def app(self) -> Starlette:
        """The service as a web application."""
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
        ]
        return Starlette(routes=routes, lifespan=self._watched, exception_handlers={HTTPException: _on_error})

    async def _predict(self, request: Request) -> Response:
        self._check_origin(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "send JSON, with Content-Type: application/json")
        body = await _body(request)
        try:
            question = _questions.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise HTTPException(400, f'the body is not {{"ids": [texts]}}: {error}') from None
        if self.scorer is None:
            raise HTTPException(503, self._nothing)
        try:
            answer = self.scorer.answer(question.ids, time.time())
        except Refusal as refusal:
            raise HTTPException(404 if refusal.is_unknown else 503, str(refusal)) from None
        return Response(_encoder.encode(answer), media_type="application/json")

    async def _healthz(self, request: Request) -> Response:
        self._check_origin(request)
        scorer, now = self.scorer, time.time()
        if scorer is None:
            nothing = {"status": "empty", "ids": 0, "why": self._nothing, "files_refused": self._refused}
            return Response(_encoder.encode(nothing), 503, media_type="application/json")
        unused = scorer.unused(now)
        silos = {
            silo: {
                "ids": len(part.scores.ids),
                "expires_in_s": None if part.expires is None else part.expires - round(now),
            }
            for silo, part in scorer.known.items()
        }
        facts = {
            "status": "incomplete" if unused else "up",
            "ids": len(scorer),
            "source": scorer.source,
            "silos": silos,
            "not_used": unused,
            "files_refused": self._refused,
        }
        code = 503 if unused and not scorer.allow_missing else 200
        return Response(_encoder.encode(facts), code, media_type="application/json")

    async def _openapi(self, request: Request) -> Response:
        self._check_origin(request)
        return Response(self._schema, media_type="application/json")

    def _check_origin(self, request: Request) -> None:
        """Refuse what comes from a web page, in a browser of this machine."""
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise HTTPException(403, "not for web pages")
        hosts = request.headers.getlist("host")
        if self._is_private and (len(hosts) != 1 or not is_own(hosts[0])):
            raise HTTPException(421, "ask for it by this machine's own address, such as 127.0.0.1")

    @asynccontextmanager
    async def _watched(self, app: Starlette) -> AsyncIterator[None]:
        """Look at the files now and then, as long as the service is up."""
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            marks = self._marks()
            if marks == self._seen:
                continue
            self._seen = marks
            try:
                self.scorer = await asyncio.to_thread(self._loaded)
            except Exception as error:  # Whatever it is: files that come later must be read.
                what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
                why = f"{what}; the former ones stay in use"
                self._refused = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "why": why}
                event("files refused", logging.WARNING, why=why)
            else:
                self._refused = None
                event("files read", ids=0 if self.scorer is None else len(self.scorer))
            self._report_unused()

    def _loaded(self) -> PartsScorer | None:
        """The scorer that follows from the files as they are; None if there is nothing to answer from."""
        try:
            return self._load()
        except NoPredictionsError as why:
            self._nothing = str(why)
            event("nothing to answer from", why=self._nothing)
        return None

    def _report_unused(self) -> None:
        """Log which phi must not be used."""
        unused = {} if self.scorer is None else self.scorer.unused(time.time())
        for silo, why in unused.items():
            event("phi not used", logging.WARNING, silo=silo, why=why)

    def _marks(self) -> dict[Path, tuple[int, ...] | None]:
        """What shows that a file was replaced."""
        marks: dict[Path, tuple[int, ...] | None] = {}
        for path in self._files():
            try:
                facts = path.stat()
            except OSError:
                marks[path] = None
            else:
                marks[path] = facts.st_mtime_ns, facts.st_size, facts.st_ino
        return marks


async def _body(request: Request) -> bytes:
    """The whole body, if it is small enough and comes soon."""
    too_large = HTTPException(413, f"a request has at most {MOST_BODY_BYTES} bytes and {MOST_IDS} ids")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MOST_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the request broke off") from None
    return bytes(body)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {**(error.headers or {}), "connection": "close"}
    return Response(_encoder.encode(ErrorAnswer(error.detail)), error.status_code, headers, "application/json")


def _openapi() -> dict[str, Any]:
    """What the service takes and gives, as an OpenAPI document."""
    (question, answer, problem), schemas = msgspec.json.schema_components(
        [Question, PredictionAnswer, ErrorAnswer], ref_template="#/components/schemas/{name}"
    )

    def of(schema: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    codes = {
        "400": "not such a request",
        "403": "not for web pages",
        "404": "a silo lacks an id",
        "408": "the request did not arrive in time",
        "413": "too large",
        "415": "not JSON",
        "421": "another host's name",
        "503": "the phi of a silo expired, its certificate was revoked, or there is none yet",
    }
    errors = {code: {"description": words, **of(problem)} for code, words in codes.items()}
    predict = {
        "summary": "Predictions of samples by id",
        "requestBody": {"required": True, **of(question)},
        "responses": {"200": {"description": "predictions", **of(answer)}, **errors},
    }
    health = {
        "summary": "Whether it can answer, and for how long phi may be used",
        "responses": {"200": {"description": "up"}, "503": {"description": "phi must not be used"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "tdcd serve", "version": sys.modules["tdcd"].__version__},
        "paths": {"/predict": {"post": predict}, "/healthz": {"get": health}},
        "components": {"schemas": schemas},
    }


class _ServerLog(logging.Handler):
    """Makes events of what the HTTP server has to say."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"why": record.getMessage()}
        if record.exc_info:
            facts["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        event("server", record.levelno, **facts)


def run(service: PredictionService, bound: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; requests that have begun are answered. A Unix socket is removed then."""
    import uvicorn  # noqa: PLC0415 - the application needs no server

    config = uvicorn.Config(
        service.app(),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=1 << 14,
        timeout_graceful_shutdown=int(PATIENCE_S),
    )
    log = logging.getLogger("uvicorn.error")
    log.handlers[:], log.propagate = [_ServerLog(logging.WARNING)], False
    with bound:
        where = bound.getsockname()
        address = where if isinstance(where, str) else "http://{}:{}".format(*where[:2])
        event("serving", address=address, ids=0 if service.scorer is None else len(service.scorer))
        uvicorn.Server(config).run(sockets=[bound])
    if isinstance(where, str):
        Path(where).unlink(missing_ok=True)
