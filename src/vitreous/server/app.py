"""The routes. Each reads its parameters, puts the work on the queue, and answers JSON; a refusal is {"error": line}."""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from vitreous.exports.facts import grid_of
from vitreous.exports.worksheet import questions, words
from vitreous.models.architecture import drawing, places
from vitreous.models.vit import ViT
from vitreous.server import pages
from vitreous.server.engine import Pixels
from vitreous.server.errors import Busy, Refusal
from vitreous.server.guard import Access, Guard
from vitreous.server.images.cache import CachedImage
from vitreous.server.images.similar import likeness
from vitreous.server.images.uploads import RequestImage, images_of, shown_name
from vitreous.server.interventions import Break, check_within
from vitreous.server.limits import Limits
from vitreous.server.queue import Worker
from vitreous.server.served import Served, thumbnail

log = logging.getLogger("vitreous.server")
SERVE_SCHEMA = "vitreous.serve/1"

IMAGE_BODY = {
    "requestBody": {
        "description": "The image: as the body, or in a multipart/form-data form; not needed with ?image=ID.",
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
        },
    }
}
ERROR_RESPONSE = {
    "description": "Refused, with the reason in one line.",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
}
STATUSES = (400, 401, 403, 404, 408, 413, 415, 421, 422, 501, 503, 507)
NO_HEAD = (
    "this model has no head, so it names nothing; ask /api/features, or fit a head: vitreous fit DATA --weights MODEL"
)
REFUSALS: dict[int | str, dict[str, Any]] = dict.fromkeys(STATUSES, ERROR_RESPONSE)

ImageId = Annotated[str | None, Query(max_length=64, description="The id that /api/predict gave an image.")]
ImageIds = Annotated[list[str] | None, Query(max_length=64, description="Ids that /api/predict gave images.")]


class _AsyncQueue:
    """The work queue for coroutines."""

    def __init__(self, served: Served, limits: Limits):
        self.served, self.limits = served, limits

    async def image_of(self, request: Request, key: str | None) -> RequestImage:
        """The one image that a request names or carries."""
        given = await images_of(request, self.served, self.limits, [key] if key else [])
        if len(given) > 1:
            raise Refusal(422, f"the request has {len(given)} images; send one")
        return given[0]

    async def do(self, request: Request, works: list[Callable[[Worker], Any]]) -> list[Any]:
        """The results of all jobs, or a refusal."""
        left = self.limits.seconds - (time.monotonic() - request.scope["vitreous.start"])
        futures = self.served.queue.submit_all(works, left)
        try:
            async with asyncio.timeout(left):
                return await asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
        except TimeoutError:
            raise Busy(f"no answer within {self.limits.seconds:g} s; try again later", after=5) from None
        finally:
            for future in futures:
                future.cancel()

    async def rows(
        self,
        request: Request,
        keys: list[str],
        facts: Callable[[Worker, CachedImage], dict[str, Any]],
        *,
        photo: bool,
    ) -> JSONResponse:
        """The facts of each image, with its id; of several images, the row of an unreadable one holds its error."""
        given = await images_of(request, self.served, self.limits, keys)

        def of(one: RequestImage) -> Callable[[Worker], dict[str, Any]]:
            def work(worker: Worker) -> dict[str, Any]:
                try:
                    key, kept = one.cached(photo=photo)
                except Refusal as refusal:
                    if len(given) == 1:
                        raise
                    return {"name": one.name, "error": refusal.line}
                row = facts(worker, kept) | {"image": key, "box": kept.box}
                return row | ({"note": kept.note} if kept.note else {})

            return work

        rows = await self.do(request, [of(one) for one in given])
        self.served.counts.add_images(sum("error" not in row for row in rows))
        return JSONResponse({"schema": SERVE_SCHEMA, "images": rows})

    async def tell(
        self, request: Request, one: RequestImage, facts: Callable[[Worker, CachedImage], dict[str, Any]]
    ) -> JSONResponse:
        """The facts of one image. A worker writes the JSON: a hundred thousand numbers would block the event loop."""

        def work(worker: Worker) -> JSONResponse:
            key, kept = one.cached()
            return JSONResponse({"schema": SERVE_SCHEMA, "image": key, **facts(worker, kept)})

        return (await self.do(request, [work]))[0]


def make_app(served: Served, access: Access, limits: Limits) -> Guard:
    """The whole application, behind its guard."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        served.open()
        yield
        await asyncio.to_thread(served.close)

    app = FastAPI(
        title="vitreous serve",
        summary="A model answers what is in an image, and shows where it looked.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=life,
        responses=REFUSALS,
    )
    app.exception_handler(Refusal)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(ClientDisconnect)(_closed)
    app.exception_handler(Exception)(_unexpected)
    for add in (_add_answers, _add_inside, _add_break, _add_facts):
        add(app, served, limits)
    pages.add(app, has_token=access.token is not None)
    routes = {route.path: route.path for route in app.routes if hasattr(route, "path")}
    return Guard(app, access, limits, served.counts, routes)


# Routes ---------------------------------------------------------------------------------------------------------------


def _add_answers(app: FastAPI, served: Served, limits: Limits) -> None:
    queue = _AsyncQueue(served, limits)

    @app.post("/api/predict", summary="What is in one or several images", openapi_extra=IMAGE_BODY)
    async def predict(
        request: Request,
        image: ImageIds = None,
        top: Annotated[int, Query(ge=1, le=1000, description="How many of the likeliest classes.")] = 5,
        photo: Annotated[bool, Query(description="Keep the whole image too, for /api/photo.")] = False,
    ) -> JSONResponse:
        """One row for each image, in order: the likeliest classes with calibrated probabilities, the answer (empty if
        the image is none of these), an id to ask about the image again, and `box`: the part that the model
        sees, as left, top, right and bottom in shares of the image.

        If several images are sent, the row of an unreadable one holds its `error`.
        """
        if not served.has_head:
            raise Refusal(501, NO_HEAD)

        def named(worker: Worker, kept: CachedImage) -> dict[str, Any]:
            return worker.engine.answer(kept.name, worker.answers_to([kept.seen])[0], top).to_json()

        return await queue.rows(request, image or [], named, photo=photo)

    @app.post("/api/features", summary="The features of one or several images", openapi_extra=IMAGE_BODY)
    async def features(
        request: Request,
        image: ImageIds = None,
        photo: Annotated[bool, Query(description="Keep the whole image too, for /api/photo.")] = False,
    ) -> JSONResponse:
        """One row for each image, in order: `features`, the numbers that a head reads, with id and `box` as of
        /api/predict. Images that are alike have features of a high cosine.
        """
        served.look_inside()

        def numbers(worker: Worker, kept: CachedImage) -> dict[str, Any]:
            found = worker.inside.feature(kept.seen) if served.has_head else worker.answers_to([kept.seen])[0]
            return {"name": kept.name, "features": [float(str(number)) for number in found]}  # float32, no digit more

        return await queue.rows(request, image or [], numbers, photo=photo)

    @app.post("/api/similar", summary="The training images most like it", openapi_extra=IMAGE_BODY)
    async def similar(
        request: Request, image: ImageId = None, count: Annotated[int, Query(ge=1, le=24)] = 6
    ) -> JSONResponse:
        """Most similar first, by the cosine of the features that the head reads. Needs a server with data."""
        neighbours = served.neighbours
        if neighbours is None:
            served.look_inside()  # an exported file refuses here: it has no features
            raise Refusal(404, "this server was given no training images; start it with --data")
        one = await queue.image_of(request, image)

        def similar_ones(worker: Worker, kept: CachedImage) -> dict[str, Any]:
            found = neighbours.find(worker.inside.feature(kept.seen), count)
            rows = [asdict(each) | {"picture": thumbnail(neighbours.data.read(each.place))} for each in found]
            return {"of": neighbours.total, "similar": rows}

        return await queue.tell(request, one, similar_ones)


def _add_inside(app: FastAPI, served: Served, limits: Limits) -> None:
    queue = _AsyncQueue(served, limits)

    @app.post("/api/attention", summary="Where the answer, or one patch, looks", openapi_extra=IMAGE_BODY)
    async def attention(
        request: Request,
        image: ImageId = None,
        patch: Annotated[
            int | None, Query(ge=0, description="A patch's index; without it, what the head reads.")
        ] = None,
        layer: Annotated[int | None, Query(ge=0, description="One layer alone.")] = None,
        head: Annotated[int | None, Query(ge=0, description="One head alone.")] = None,
    ) -> JSONResponse:
        """Maps over the patches, row by row, for every layer and head, and rolled out through all layers."""
        one = await queue.image_of(request, image)
        _check_place(served, patch=patch, layer=layer, head=head)

        def maps(worker: Worker, kept: CachedImage) -> dict[str, Any]:
            found = worker.inside.attend(kept.seen, patch)[1]
            if found is None:
                raise Refusal(501, "this model's pool does not say which tokens it reads; ask about a patch")
            return found.to_json(layer, head)

        return await queue.tell(request, one, maps)

    @app.post("/api/tokens", summary="What goes into the first block", openapi_extra=IMAGE_BODY)
    async def tokens(
        request: Request,
        image: ImageId = None,
        numbers: Annotated[int, Query(ge=1, le=128, description="How many numbers of each token.")] = 48,
    ) -> JSONResponse:
        """The tokens with positions: first those in front, then the patches row by row."""
        one = await queue.image_of(request, image)
        _check_place(served)
        return await queue.tell(request, one, lambda worker, kept: {"tokens": worker.inside.tokens(kept.seen, numbers)})

    @app.post("/api/stem", summary="What the convolutions before the tokens make", openapi_extra=IMAGE_BODY)
    async def stem(
        request: Request,
        image: ImageId = None,
        maps: Annotated[int, Query(ge=1, le=16, description="How many maps of each convolution.")] = 6,
    ) -> JSONResponse:
        """Each step of a hybrid's stem: its shape, channels first, and some of its maps, at most 28 x 28."""
        one = await queue.image_of(request, image)
        _check_place(served)
        if served.about()["transformer"]["stem"] == "patch":
            raise Refusal(422, "this model cuts its patches from the image; no convolutions come before them")
        return await queue.tell(request, one, lambda worker, kept: {"steps": worker.inside.stem(kept.seen, maps)})


def _add_break(app: FastAPI, served: Served, limits: Limits) -> None:
    queue = _AsyncQueue(served, limits)

    @app.post("/api/break", summary="The answer before and after something is broken", openapi_extra=IMAGE_BODY)
    async def break_(
        request: Request,
        image: ImageId = None,
        shuffle: Annotated[int | None, Query(ge=0, le=2**31, description="Shuffle the tokens; a seed.")] = None,
        positions: Annotated[bool, Query(description="Remove all positions.")] = False,
        head: Annotated[list[str] | None, Query(max_length=512, description="Silence BLOCK.HEAD, from 0.")] = None,
        block: Annotated[list[int] | None, Query(max_length=512, description="Leave a block out, from 0.")] = None,
        skip: Annotated[list[str] | None, Query(max_length=512, description="Cut BLOCK.1 or BLOCK.2.")] = None,
        hide: Annotated[list[int] | None, Query(max_length=4096, description="Cover a square, from 0.")] = None,
        top: Annotated[int, Query(ge=1, le=1000)] = 5,
    ) -> JSONResponse:
        """Answers and rollouts of the image before and after, and `order`: which patch stands at each place.

        Without a head `likeness` takes the place of answers: the cosine of the features before and after.
        """
        one = await queue.image_of(request, image)
        broken = Break(
            shuffle=shuffle,
            positions=positions,
            heads=_pairs(head, "head"),
            blocks=tuple(block or ()),
            skips=_pairs(skip, "skip"),
            hide=tuple(dict.fromkeys(hide or ())),
        )
        model = served.look_inside()
        grid = grid_of(model)
        broken.check(model, grid)

        def both(worker: Worker, kept: CachedImage) -> dict[str, Any]:
            before, after = (worker.inside.attend(kept.seen, None, each) for each in (None, broken))
            told = [
                (worker.engine.answer(kept.name, answer, top).to_json() if served.has_head else {"name": kept.name})
                | {"rollout": None if found is None else found.to_json(0, 0)["rollout"]}
                for answer, found in (before, after)
            ]
            return {
                "broken": broken.in_words(places(model.config)),
                "order": broken.order(grid[0] * grid[1]),
                "before": told[0],
                "after": told[1],
                "likeness": None if served.has_head else likeness(before[0], after[0]),
            }

        return await queue.tell(request, one, both)


def _add_facts(app: FastAPI, served: Served, limits: Limits) -> None:
    @app.get("/api/seen", summary="An image as the model sees it", response_class=Response)
    async def seen(image: Annotated[str, Query(max_length=64, description="The id of an image.")]) -> Response:
        """PNG, resized and cropped for the model."""
        kept = served.cache.get(image)
        return Response(await asyncio.to_thread(_png, kept.seen), media_type="image/png")

    @app.get("/api/photo", summary="A whole image, small enough for a page", response_class=Response)
    async def photo(image: Annotated[str, Query(max_length=64, description="The id of an image.")]) -> Response:
        """PNG or JPEG, upright, of an image that /api/predict was given with photo=true."""
        kept = served.cache.get(image)
        if kept.photo is None:
            raise Refusal(404, "the server has not kept the whole of that image; send it again with photo=true")
        kind = "image/png" if kept.photo.startswith(b"\x89PNG") else "image/jpeg"
        return Response(kept.photo, media_type=kind)

    @app.get("/api/model", summary="What the model is, and what may be sent")
    async def model() -> JSONResponse:
        sizes = {"upload": limits.upload, "pixels": limits.pixels, "files": limits.files, "seconds": limits.seconds}
        return JSONResponse({"schema": SERVE_SCHEMA, **served.about(), "limits": sizes})

    @app.get("/api/architecture", summary="A drawing of the whole model", response_class=Response)
    async def architecture() -> Response:
        """SVG: every part with its shape and its parameters, in the colours of the page around it."""
        chart = await asyncio.to_thread(drawing, served.look_inside().config, served.name)
        return Response(chart.to_svg(), media_type="image/svg+xml")

    @app.get("/api/worksheet", summary="Questions about the model, with answers and words")
    async def worksheet() -> JSONResponse:
        model = served.look_inside()
        rows = [asdict(row) for row in await asyncio.to_thread(questions, model)]
        return JSONResponse(
            {"schema": SERVE_SCHEMA, "name": served.name, "questions": rows, "words": words(model)},
        )

    @app.get("/api/examples", summary="Images to begin with")
    async def examples() -> JSONResponse:
        return JSONResponse({"schema": SERVE_SCHEMA, "examples": served.examples, "learned": served.has_learned})

    @app.get("/healthz", summary="Whether the server is alive")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", summary="Counts, as Prometheus reads them", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        at = served.queue
        text = served.counts.text(waiting=at.waiting, held=at.held, limit=at.limit)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


# Parameters and JSON --------------------------------------------------------------------------------------------------


def _check_place(
    served: Served, *, patch: int | None = None, layer: int | None = None, head: int | None = None
) -> None:
    model = served.look_inside()
    if not isinstance(model, ViT):
        raise Refusal(501, "this model is a network of convolutions and has no attention")
    encoder, grid = model.config.encoder, model.grid
    for what, number, count in (
        ("patch", patch, grid[0] * grid[1]),
        ("layer", layer, encoder.depth),
        ("head", head, encoder.heads),
    ):
        if number is not None:
            check_within(number, count, what)


def _pairs(words: list[str] | None, what: str) -> tuple[tuple[int, int], ...]:
    """3.1 -> (3, 1)."""
    found = []
    for word in words or ():
        first, dot, second = word.partition(".")
        if not (dot and first.isdecimal() and second.isdecimal() and word.isascii() and len(word) <= 12):
            raise Refusal(422, f"{shown_name(word)!r} names no {what}; write BLOCK.NUMBER, such as 3.1")
        found.append((int(first), int(second)))
    return tuple(dict.fromkeys(found))


def _png(pixels: Pixels) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(stream, "PNG")
    return stream.getvalue()


# Errors ---------------------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": error.line}, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Name the first parameter that does not fit."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if not isinstance(part, int)) or "the request"
    message = str(first["msg"])
    return JSONResponse({"error": f"{shown_name(where)} does not fit: {message[:1].lower()}{message[1:]}"}, 422)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    lines = {404: "there is nothing here; see /docs", 405: "this address takes another method; see /docs"}
    return JSONResponse({"error": lines.get(error.status_code, str(error.detail))}, error.status_code, error.headers)


async def _closed(request: Request, error: Exception) -> JSONResponse:
    """Nobody reads this answer; it exists for the metrics."""
    log.warning("a client closed the connection during its upload to %s", request.url.path)
    return JSONResponse({"error": "the connection closed during the upload"}, 400)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug of ours: the log gets the traceback, the client a number to find it by."""
    number = secrets.token_hex(4)
    log.error("error %s in %s", number, request.url.path, exc_info=error)
    return JSONResponse({"error": f"the server failed ({number}); see its log"}, 500)
