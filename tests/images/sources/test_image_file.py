"""Whatever a camera or a web page made, upright RGB comes out, or one line that names the file."""

import contextlib
import io
import re
import struct
import zlib

import numpy as np
import pytest
from picture_files import encoded, photo
from PIL import Image
from shared_files import ROOT

from vitreous.errors import DataError, TooLargeError
from vitreous.images.pixels import decode
from vitreous.images.sources import image_file


def saved(image: Image.Image, format: str, **how) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **how)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "WEBP", "PPM"])
def test_lossless_files_give_their_pixels(format):
    how = {"lossless": True} if format == "WEBP" else {}
    assert np.array_equal(image_file.decode(saved(photo(1), format, **how), "a"), np.asarray(photo(1)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_stands_upright_however_the_camera_was_held(orientation):
    """The stored picture turned as EXIF says is the scene; the inverse turn makes the stored picture."""
    inverse = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    turn = image_file.EXIF_TURNS.get(orientation)
    stored = photo(2) if turn is None else photo(2).transpose(inverse.get(orientation, turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    raw = saved(stored, "PNG", exif=exif)
    assert np.array_equal(image_file.decode(raw, "a"), np.asarray(photo(2)))


def test_transparency_is_laid_on_white():
    image = photo(3).convert("RGBA")
    image.putalpha(0)
    assert (image_file.decode(saved(image, "PNG"), "a") == 255).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert (image_file.decode(saved(palette, "PNG", transparency=1), "a") == 255).all()
    assert (image_file.decode(saved(palette, "PNG"), "a") == [255, 0, 0]).all()
    grey = Image.new("LA", (4, 4), (10, 0))
    assert (image_file.decode(saved(grey, "PNG"), "a") == 255).all()


def test_sixteen_bits_are_scaled_to_eight():
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    raw = saved(Image.fromarray(ramp), "PNG")
    assert np.array_equal(image_file.decode(raw, "a")[:, :, 0], np.arange(256).reshape(16, 16))
    dark = saved(Image.fromarray((np.arange(256, dtype=np.uint16)).reshape(16, 16)), "PNG")
    assert image_file.decode(dark, "a").max() == 1  # a dark picture stays dark
    floats = saved(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF")
    assert (image_file.decode(floats, "a") == 128).all()


def test_cmyk_becomes_rgb():
    red = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.abs(image_file.decode(red, "a").astype(int) - [255, 0, 0]).max() < 6


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_counts(format):
    first, second = Image.new("RGB", (8, 8), "blue"), Image.new("RGB", (8, 8), "lime")
    raw = saved(
        first,
        format,
        save_all=True,
        append_images=[second],
        duration=100,
        **({"lossless": True} if format == "WEBP" else {}),
    )
    assert (image_file.decode(raw, "a") == [0, 0, 255]).all()


def test_grey_has_one_channel_when_asked():
    grey = photo(4).convert("L")
    assert np.array_equal(image_file.decode(saved(grey, "PNG"), "a", channels=1)[:, :, 0], np.asarray(grey))
    assert image_file.decode(saved(grey, "PNG"), "a").shape == (32, 40, 3)


def test_pixels_may_be_written_to():
    image_file.decode(encoded(1), "a")[0, 0] = 7


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that says it is side × side."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


HEIC = struct.pack(">I", 24) + b"ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"", "x.jpg is empty (0 bytes); delete it, or fetch it again"),
        (encoded(1, "JPEG")[:400], "x.jpg is cut short; delete it, or fetch it again"),
        (encoded(1)[:300], "x.jpg is cut short; delete it, or fetch it again"),
        (
            b"<html>not found</html>",
            "x.jpg is not an image in any format known here; give a JPEG or PNG, or fetch it again",
        ),
        (bomb(20_000), "x.jpg has more than 178 megapixels; at most 120 are read here: shrink it"),
        (HEIC, "x.jpg is a HEIC image; pip install 'vitreous[heic]' to read it"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(raw, line):
    with pytest.raises(DataError) as error:
        image_file.decode(raw, "x.jpg")
    assert str(error.value) == line


def test_the_header_decides_about_a_large_picture():
    """A camera of 102 megapixels passes; at 144 Pillow would only warn, and nobody sees a warning."""
    assert image_file.open_image(bomb(10_100), "large.png").size == (10_100, 10_100)
    with pytest.raises(TooLargeError) as error:
        image_file.open_image(bomb(12_000), "large.png")
    assert str(error.value) == "large.png has 144.0 megapixels; at most 120 are read here: shrink it"


def with_scans(count: int) -> bytes:
    """A JPEG whose last scan is there again and again."""
    raw = encoded(1, "JPEG", progressive=True)
    scan = raw[raw.rindex(b"\xff\xda") : -2]
    return raw[:-2] + scan * (count - raw.count(b"\xff\xda")) + b"\xff\xd9"


def test_scans_of_a_jpeg_are_counted_up_to_its_end():
    few, many, film = with_scans(200), with_scans(201), encoded(1, "JPEG") + b"\xff\xda" * 1000
    assert image_file.decode(few, "a").shape == image_file.decode(film, "a").shape == (32, 40, 3)
    with pytest.raises(DataError, match=r"^a\.jpg has more than 200 scans, which no camera writes; save it anew$"):
        image_file.decode(many, "a.jpg")
    assert [decode.header(raw) is None for raw in (few, many, film)] == [False, True, False]
    with pytest.raises(DataError, match="more than 200 scans"):  # nor by the quick way
        decode.decode(many, "a.jpg", fast=True)


def test_a_picture_without_its_palette_is_broken():
    palette = Image.new("P", (4, 4), 1)
    raw = saved(palette, "PNG")
    start = raw.index(b"PLTE") - 4
    length = 12 + int.from_bytes(raw[start : start + 4], "big")
    with pytest.raises(DataError, match=r"^a\.png is broken \(its palette is missing\); delete it, or fetch it again$"):
        image_file.decode(raw[:start] + raw[start + length :], "a.png")


def test_what_memory_cannot_hold_is_named(monkeypatch):
    def full(image):
        raise MemoryError

    monkeypatch.setattr(image_file, "upright", full)
    with pytest.raises(TooLargeError, match=r"^a\.png is more than the memory here holds; shrink it$"):
        image_file.decode(encoded(1), "a.png")


@pytest.mark.parametrize("format", ["EPS", "ICO", "PCX", "PDF", "SGI", "DDS"])
def test_other_formats_are_not_even_tried(format):
    with pytest.raises(DataError, match="is not an image in any format known here"):
        image_file.decode(saved(photo(1), format), "a.jpg")


@pytest.mark.parametrize(
    "format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "PPM", "JPEG2000", "TGA", "MPO"]
)
def test_every_format_that_names_promise_is_read(format):
    assert image_file.decode(saved(photo(1), format), "a").shape == (32, 40, 3)


def test_pillow_opens_files_in_one_place():
    """Beside it stands a script that goes out with exports."""
    source = ROOT / "src" / "vitreous"
    opened = {
        str(file.relative_to(source)): re.findall(r"Image\.open\((?:[^()]|\([^()]*\))*\)", file.read_text())
        for file in source.rglob("*.py")
        if "Image.open(" in file.read_text()
    }
    assert set(opened) == {"images/sources/image_file.py", "exports/standalone_run.py"}
    assert all("formats=" in call for calls in opened.values() for call in calls)
    assert len(opened["images/sources/image_file.py"]) == 1


def test_a_png_named_jpg_is_read_by_what_it_is():
    assert image_file.decode(encoded(5), "liar.jpg").shape == (32, 40, 3)


def test_broken_bytes_never_raise_anything_else():
    for format in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"):
        raw = bytearray(encoded(6, format))
        rng = np.random.default_rng(0)
        for _ in range(40):
            hurt = bytearray(raw)
            for place in rng.integers(0, len(raw), 8):
                hurt[place] ^= int(rng.integers(1, 256))
            with contextlib.suppress(DataError):
                assert image_file.decode(bytes(hurt), "hurt").dtype == np.uint8


def test_damaged_exif_is_no_exif():
    raw = encoded(1, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12" * 40)
    assert image_file.decode(raw, "a").shape == (32, 40, 3)
    assert image_file.taken(image_file.open_image(raw, "a")) == ("", "")


def test_when_and_by_what_a_photograph_was_taken():
    exif = Image.Exif()
    exif[image_file.CAMERA_MAKE], exif[image_file.CAMERA_MODEL] = "Vitreous", "One"
    exif.get_ifd(image_file.EXIF_PART)[image_file.TAKEN_AT] = "2026:11:15 10:00:00"
    image = image_file.open_image(encoded(1, "JPEG", exif=exif), "a")
    assert image_file.taken(image) == ("2026:11:15 10:00:00", "Vitreous One")
