"""Nobody gets more than the limits allow, everybody is told why, and the server goes on."""

from __future__ import annotations

import asyncio
import hmac
import io
import os
import random
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest
import serving
from PIL import Image
from serving import encoded, picture, until

from vitreous.images.sources.image_file import sniff
from vitreous.server.errors import Busy
from vitreous.server.guard import Access, Guard
from vitreous.server.images.cache import CachedImage, ImageCache
from vitreous.server.images.uploads import shown_name
from vitreous.server.limits import Limits
from vitreous.server.metrics import Counts

GOOD = encoded(picture(1))


@pytest.fixture(scope="module")
def server():
    with serving.thread() as (caller, _, _):
        yield caller


def is_well(caller) -> bool:
    return caller.send("/api/predict", GOOD).status == 200


def flat_png(columns: int, rows: int, *, lies: bool = False) -> bytes:
    """A black picture of one bit a pixel: some kilobytes however large it is, or says it is."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    line = bytes(1 + (columns + 7) // 8)
    packed = b"".join(packer.compress(line) for _ in range(1 if lies else rows)) + packer.flush()
    head = struct.pack(">IIBBBBB", columns, rows, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def test_one_pixel_is_an_image(server):
    assert server.send("/api/predict", flat_png(1, 1)).status == 200


def test_a_hundred_megapixels_are_refused_before_they_are_unpacked(server):
    raw = flat_png(10_000, 10_000)
    assert len(raw) < 100_000
    reply = server.form("/api/predict", [("wall.png", raw)])
    assert reply.status == 413
    assert reply.error == "wall.png has 100.0 megapixels; at most 50 are read here: shrink it"


def test_a_bomb_is_refused(server):
    reply = server.form("/api/predict", [("bomb.png", flat_png(60_000, 60_000, lies=True))])
    assert reply.status == 413
    assert reply.error == "bomb.png has more than 178 megapixels; at most 50 are read here: shrink it"


def test_ten_thousand_files_are_refused_in_one_line(server):
    reply = server.form("/api/predict", [(f"{i}.png", b"x") for i in range(10_000)])
    assert reply.status == 413
    assert reply.error == "one request takes at most 32 images; send them in parts"
    assert is_well(server)


def test_ten_thousand_ids_are_refused(server):
    reply = server.call("POST", "/api/predict?" + "&".join(["image=example-0"] * 3000))
    assert reply.status in (413, 422)
    assert reply.error


def test_an_upload_that_says_it_is_too_large_is_not_read():
    with serving.thread(limits=Limits(upload=10_000)) as (caller, _, _):
        reply = caller.send("/api/predict", bytes(20_000))
        assert reply.status == 413
        assert reply.error == "one request takes at most 0.00953674 MiB; shrink or split it"
        assert is_well(caller)


def asked(guard: Guard, **headers: str) -> int:
    """The status of one call with an empty body, whatever its headers say."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/api/predict", "headers": [(b"host", b"localhost"), *pairs]}
    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"] if sent else 500


@pytest.mark.parametrize(
    ("length", "status"),
    [("0", 200), ("9999", 200), ("10000", 200), ("10001", 413), ("9" * 30, 413), ("-1", 413), ("1e3", 413), ("²", 413)],
)
def test_an_upload_that_says_it_is_too_large_never_comes_to_the_application(length, status):
    reached = []

    async def app(scope, receive, send):
        reached.append(1)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(app, Access(), Limits(upload=10_000), Counts(), {})
    assert asked(guard, content_length=length) == status
    assert len(reached) == (status == 200)


@pytest.mark.parametrize("fails", [None, RuntimeError("ours"), Busy("full", after=1)])
def test_bytes_in_flight_are_given_back_however_a_call_ends(fails):
    async def app(scope, receive, send):
        if fails is not None:
            raise fails
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guard = Guard(app, Access(), Limits(upload=100, in_flight=100), Counts(), {})
    for _ in range(3):
        asked(guard, content_length="90")
    assert guard._in_flight == 0


def test_an_upload_that_does_not_say_its_size_counts_as_the_largest():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    limits = Limits(upload=100, in_flight=99)
    assert asked(Guard(app, Access(), limits, Counts(), {}), transfer_encoding="chunked") == 503
    assert asked(Guard(app, Access(), replace(limits, in_flight=100), Counts(), {}), transfer_encoding="chunked") == 200


def test_an_upload_that_does_not_say_its_size_is_counted():
    with serving.thread(limits=Limits(upload=10_000)) as (caller, _, _):
        from http.client import HTTPConnection

        connection = HTTPConnection("127.0.0.1", caller.port, timeout=10)
        chunks = (bytes(1000) for _ in range(30))
        connection.request("POST", "/api/predict", chunks, {"Content-Type": "image/png"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        assert is_well(caller)


@pytest.mark.parametrize(
    ("name", "raw", "status", "line"),
    [
        ("note.txt", b"hello", 415, "note.txt is not an image that this server reads"),
        (
            "page.eps",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            415,
            "page.eps is not an image that this server reads",
        ),
        (
            "drawing.svg",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            415,
            "drawing.svg is not an image that this server reads",
        ),
        ("none.png", b"", 422, "none.png is empty (0 bytes); send an image"),
        ("half.png", GOOD[: len(GOOD) // 2], 422, "half.png is "),
        ("half.jpg", encoded(picture(1), "JPEG")[:300], 422, "half.jpg is cut short; send it again, or another"),
        ("liar.jpg", b"\xff\xd8\xff" + bytes(64), 422, "liar.jpg is "),
        ("scans.jpg", b"\xff\xd8\xff" + b"\xff\xda" * 300, 422, "scans.jpg has more than 200 scans"),
        ("../../etc/passwd", b"root", 415, "passwd is not an image that this server reads"),
        ("<script>alert(1)</script>.png", b"x", 415, "script>.png is not an image that this server reads"),
        ("phone.heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40), 415, "phone.heic is a HEIC image"),
    ],
)
def test_what_is_no_image_is_told_so(server, name, raw, status, line):
    reply = server.form("/api/predict", [(name, raw)])
    if name == "phone.heic" and reply.status == 422:
        pytest.skip("HEIC is read here")
    assert reply.status == status
    assert reply.error.startswith(line)


def test_the_declared_type_is_not_believed(server):
    reply = server.call("POST", "/api/predict", b"hello", {"Content-Type": "image/png"})
    assert reply.status == 415
    assert server.call("POST", "/api/predict", GOOD, {"Content-Type": "text/html"}).status == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data; boundary=EDGE", b"--EDGE\r\nnonsense"),
        ("multipart/form-data; boundary=EDGE", b""),
        ("multipart/form-data", GOOD),
        (
            "multipart/form-data; boundary=EDGE",
            b"--EDGE\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n--EDGE--\r\n",
        ),
        ("application/json", b""),
    ],
)
def test_a_form_without_images_is_told_so(server, kind, body):
    reply = server.call("POST", "/api/predict", body, {"Content-Type": kind})
    assert reply.status in (400, 422)
    assert reply.error


def test_no_address_is_fetched_and_no_path_is_opened(server):
    for word in ("http://127.0.0.1:1/a.png", "file:///etc/passwd", "/etc/passwd", "../../etc/passwd"):
        assert server.call("POST", f"/api/predict?image={word}").status == 404
        assert server.send("/api/predict", word.encode()).status == 415
    for path in ("/../pyproject.toml", "/page/../app.py", "/%2e%2e/app.py", "/house.css/../../app.py"):
        assert server.get(path).status == 404


# Who may call ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/lesson", "/docs", "/page.js", "/house.css", "/api/model", "/healthz", "/none"])
def test_every_answer_carries_the_headers(server, path):
    headers = server.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not {"server", "x-powered-by", "access-control-allow-origin"} & set(headers)
    camera = "camera=(self)" if path == "/" else "camera=()"  # the one page with the button
    assert headers["permissions-policy"].startswith(f"{camera}, display-capture=(), geolocation=(), microphone=()")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.7", "", "[::2]"]
)
def test_a_name_that_is_not_ours_is_refused(server, host):
    """DNS rebinding: a page of evil.example whose name suddenly means 127.0.0.1."""
    reply = server.get("/api/model", Host=host)
    assert reply.status == 421
    assert "does not answer to that name" in reply.error


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "LOCALHOST:9", "[::1]:8000", "127.8.8.8"])
def test_loopback_names_are_ours(server, host):
    assert server.get("/api/model", Host=host).status == 200


def test_a_page_of_another_address_may_not_call(server):
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert server.call("POST", "/api/predict", GOOD, headers).status == 403
    own = {"Origin": server.url, "Host": f"127.0.0.1:{server.port}", "Sec-Fetch-Site": "same-origin"}
    assert server.call("POST", "/api/predict", GOOD, own).status == 200
    preflight = server.call(
        "OPTIONS", "/api/predict", headers={"Origin": server.url, "Access-Control-Request-Method": "POST"}
    )
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_door_open_to_a_network_takes_addresses_and_its_own_names():
    access = Access(is_local=False, names=frozenset({"desk.local"}))
    assert all(access.knows(host) for host in ("192.168.0.7:8000", "10.0.0.1", "desk.local:8000", "[fe80::1]:80"))
    assert not any(access.knows(host) for host in ("evil.example", "desk.local.evil.example", ""))


def test_the_token_opens_the_api_and_nothing_else_does():
    with serving.thread(access=Access(token="correct-horse")) as (caller, _, _):
        assert caller.get("/api/model").status == 200
        for wrong in (
            "Bearer wrong-horse",
            "Bearer",
            "",
            "Basic correct-horse",
            "Bearer correct-horse-2",
            "correct-horse",
        ):
            reply = caller.call("GET", "/api/model", headers={"Authorization": wrong})
            assert reply.status == 401
            assert reply.headers["www-authenticate"] == "Bearer"
            assert "correct" not in reply.error
        bare = serving.Caller(caller.port)
        assert [bare.get(path).status for path in ("/", "/healthz", "/docs", "/metrics", "/api/model")] == [
            200, 200, 200, 401, 401,
        ]  # fmt: skip
        assert bare.call("POST", "/api/predict", GOOD).status == 401
        assert bare.get("/api/model?token=correct-horse").status == 401


def test_the_token_is_compared_in_a_time_that_says_nothing_about_it(monkeypatch):
    """`==` ends at the first letter that differs, so that a token could be found letter by letter."""
    compared, compare = [], hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    access = Access(token="correct-horse")
    assert access.admits("Bearer correct-horse")
    assert not access.admits("Bearer wrong-horse")
    assert compared == [(b"correct-horse", b"correct-horse"), (b"wrong-horse", b"correct-horse")]


# Too much at once --------------------------------------------------------------------------------------------------


def in_background(work, count):
    found, threads = [], []
    for _ in range(count):
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        threads.append(thread)
    return found, threads


def held_up(served):
    """The only worker is busy until the event is set."""
    free = threading.Event()
    served.queue.submit_all([lambda worker: free.wait(30)], 30)
    return free


def test_a_full_queue_answers_503_with_retry_after_and_keeps_what_it_took():
    with serving.thread(limits=Limits(queue=3)) as (caller, served, _):
        free = held_up(served)
        found, threads = in_background(lambda: caller.send("/api/predict", GOOD), 3)
        until(lambda: served.queue.held == 4)
        refused = caller.send("/api/predict", GOOD)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.error == "3 images are waiting already; try again later"
        assert caller.get("/healthz").status == 200  # the event loop is free
        assert b"vitreous_waiting 3\n" in caller.get("/metrics").body
        free.set()
        for thread in threads:
            thread.join()
        assert [reply.status for reply in found] == [200, 200, 200]
        assert is_well(caller)


def test_all_clients_together_send_no_more_than_the_memory_is_for():
    with serving.thread(limits=Limits(in_flight=2 * len(GOOD) + 10)) as (caller, served, _):
        free = held_up(served)
        found, threads = in_background(lambda: caller.send("/api/predict", GOOD), 2)
        until(lambda: served.queue.held == 3)
        refused = caller.send("/api/predict", GOOD)
        assert refused.status == 503
        assert refused.error == "too many bytes are being uploaded at once; try again later"
        free.set()
        for thread in threads:
            thread.join()
        assert [reply.status for reply in found] == [200, 200]
        assert is_well(caller)


def test_an_answer_that_takes_too_long_is_given_up():
    with serving.thread(limits=Limits(seconds=0.4)) as (caller, served, _):
        free = held_up(served)
        late = caller.send("/api/predict", GOOD)
        assert late.status == 503
        assert late.error == "no answer within 0.4 s; try again later"
        free.set()
        until(lambda: served.queue.held == 0)
        assert is_well(caller)


def test_a_body_that_never_ends_is_given_up():
    with serving.thread(limits=Limits(seconds=0.4)) as (caller, _, _):
        with socket.create_connection(("127.0.0.1", caller.port), timeout=10) as line:
            head = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\nabc"
            line.sendall(head)
            assert b" 408 " in line.recv(4096)
        assert is_well(caller)


PART = serving.form([("a.png", GOOD)])
FORM = "Content-Type: multipart/form-data; boundary=EDGE\r\n"


def upload(length: int, start: bytes, more: str = "") -> bytes:
    """The head of a request that says its length, and the first of its bytes."""
    return f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n".encode() + start


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        upload(5000, b""),
        upload(5000, b"abc"),
        upload(len(PART), PART[:60], FORM),
        upload(len(PART), PART[: len(PART) // 2], FORM),
        upload(9_000_000, PART[:-30] + bytes(2_000_000), FORM),
        b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ],
    ids=["head alone", "three bytes", "form begun", "form half there", "form on disk", "chunks"],
)
def test_a_client_that_closes_in_the_middle_of_its_upload_is_one_line_of_the_log(server, caplog, raw, is_reset):
    _call_and_close(server, raw, is_reset)
    until(lambda: caplog.records)
    assert is_well(server)
    (record,) = caplog.records
    assert record.getMessage() == "a client closed the connection during its upload to /api/predict"
    assert (record.levelname, record.exc_info) == ("WARNING", None)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize(
    "raw",
    [b"POST /api/pre", upload(len(GOOD), GOOD), b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n", bytes(200)],
    ids=["half a head", "before its answer", "during its page", "junk"],
)
def test_a_client_that_closes_at_any_other_moment_is_no_mistake(server, caplog, raw, is_reset):
    _call_and_close(server, raw, is_reset)
    assert is_well(server)
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


def _call_and_close(caller, raw: bytes, is_reset: bool) -> None:
    """is_reset: as a process that dies, or a cable that is pulled, ends a connection."""
    with socket.create_connection(("127.0.0.1", caller.port), timeout=10) as line:
        line.sendall(raw)
        time.sleep(0.05)  # so that the server has it
        if is_reset:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


NO_ROOM = (
    "the server has no room for this form in its temporary folder (No space left on device); send one image as the "
    "body, which needs no file, or try again later"
)


@pytest.fixture
def full_folder(tmp_path):
    """A file system of 64 KiB, so that a real disk is full."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if (done := subprocess.run(words, capture_output=True, text=True)).returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_temporary_folder_is_507_and_says_why(server, full_folder, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(full_folder))
    large = encoded(picture(1, size=(2000, 1500)), "BMP")  # 9 MB; a form keeps 1 MB in memory
    reply = server.form("/api/predict", [("a.bmp", large)])
    assert (reply.status, reply.error) == (507, NO_ROOM)
    assert [record.getMessage() for record in caplog.records] == [
        f"no room for an upload in {full_folder}: No space left on device"
    ]
    assert server.send("/api/predict", large).status == 200  # a body needs no disk
    assert server.form("/api/predict", [("a.png", GOOD)]).status == 200
    assert not any(full_folder.iterdir())


def test_where_the_system_allows_no_more_bytes_in_a_file_it_is_507_too(server):
    """RLIMIT_FSIZE needs no root: the same way through the server, with another error of the system's."""
    resource = pytest.importorskip("resource", reason="Windows has no such limit")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = encoded(picture(1, size=(1000, 700)), "BMP")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
        reply = server.form("/api/predict", [("a.bmp", large)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert reply.status == 507
    assert "(File too large)" in reply.error
    assert is_well(server)


def test_only_the_last_images_are_kept():
    """Asking about one makes it the last; an example stays."""
    with serving.thread(limits=Limits(kept=3)) as (caller, served, _):

        def sent(seed: int) -> str:
            return caller.send("/api/predict", encoded(picture(seed))).json["images"][0]["image"]

        def is_kept(key: str) -> bool:
            return caller.call("POST", f"/api/predict?image={key}").status == 200

        first, second, third = map(sent, range(3))
        assert is_kept(first)
        fourth = sent(3)
        assert sent(3) == fourth  # the same bytes take no second place
        assert not is_kept(second)
        assert all(map(is_kept, (first, third, fourth, "example-0")))
        assert len(served.cache._kept) == 3


def test_nobody_can_compute_the_id_of_an_image():
    """Else one client could ask whether another had sent it: each server has a key of its own."""
    kept = CachedImage("a.png", np.zeros((4, 4, 3), np.uint8))
    first, second = ImageCache(), ImageCache()
    assert first.put(GOOD, kept, 3) == first.put(GOOD, kept, 3) != second.put(GOOD, kept, 3)


def test_closing_finishes_what_was_taken():
    with serving.thread() as (caller, served, server):
        free = held_up(served)
        found, threads = in_background(lambda: caller.send("/api/predict", GOOD), 5)
        until(lambda: served.queue.held == 6)
        server.should_exit = True
        threading.Timer(0.3, free.set).start()
        for thread in threads:
            thread.join(20)
        assert [reply.status for reply in found] == [200] * 5


def test_our_own_mistake_is_a_number_for_the_client_and_a_traceback_for_the_log(caplog):
    with serving.thread() as (caller, served, _):
        served.model.labels = None
        served.cache.get = lambda key: 1 / 0
        reply = caller.call("POST", "/api/predict?image=example-0")
        assert reply.status == 500
        assert reply.error.startswith("the server failed (")
        assert "division" not in reply.error
        assert "division by zero" in caplog.text
        number = reply.error.partition("(")[2][:8]
        assert number in caplog.text


# Hostile pictures --------------------------------------------------------------------------------------------------


def mutated(seed: int) -> bytes:
    """A real file with bytes changed, cut, repeated or joined to another."""
    rng = random.Random(seed)
    kind = rng.choice(["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
    mode = rng.choice(["RGB", "L", "P"]) if kind in ("PNG", "GIF", "BMP", "TIFF") else "RGB"
    raw = bytearray(encoded(picture(seed, size=(rng.randint(1, 90), rng.randint(1, 90)), mode=mode), kind))
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(raw))
        match rng.randrange(6):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at : at + rng.randint(1, 40)] = rng.randbytes(rng.randint(0, 40))
            case 2:
                del raw[max(at, 12) :]
            case 3:
                raw[at:at] = raw[at : at + 200]
            case 4:
                raw[at : at + 4] = b"\xff\xff\xff\xff"
            case 5:
                raw[at : at + 4] = b"\0\0\0\0"
        raw = raw or bytearray(b"x")
    return bytes(raw)


def survives(caller, seeds) -> None:
    statuses = set()
    for seed in seeds:
        reply = caller.send("/api/predict", mutated(seed))
        statuses.add(reply.status)
        assert reply.status in (200, 413, 415, 422), (seed, reply.body)
        if reply.status != 200:
            assert "/" not in reply.error.replace("H/W", ""), reply.error
    assert {200, 422} <= statuses
    assert is_well(caller)


def test_mutated_images_are_answered_or_refused(server):
    survives(server, range(20))


@pytest.mark.slow
def test_hundreds_of_mutated_images_are_answered_or_refused(server):
    survives(server, range(20, 620))


def test_names_and_formats_are_what_they_look_like():
    assert shown_name("C:\\photos\\cat.jpg") == "cat.jpg"
    assert shown_name("a\r\nb\0c") == "a??b?c"
    assert shown_name(None) == shown_name("///") == "the image"
    assert len(shown_name("x" * 300)) == 60
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"):
        assert sniff(encoded(picture(), kind)) == kind
    for kind in ("PPM", "TGA", "ICO", "PCX", "EPS"):
        assert sniff(encoded(picture(), kind)) is None
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(buffer, "PDF")
    assert sniff(buffer.getvalue()) is None
