"""Copies have near hashes, other pictures have not, and near pairs are found without comparing all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from picture_files import photo
from PIL import Image
from scipy.fft import dctn

from vitreous.images import perceptual_hash

PHOTOS = [photo(i, (160, 120)) for i in range(40)]


def pixels(image):
    return np.asarray(image)


def test_a_resized_copy_is_near_and_another_picture_is_far():
    own = np.array([perceptual_hash.phash(pixels(p)) for p in PHOTOS])
    small = np.array([perceptual_hash.phash(pixels(p.resize((80, 60), Image.Resampling.LANCZOS))) for p in PHOTOS])
    assert perceptual_hash.distances(own, small).max() <= 6
    apart = [int(perceptual_hash.distances(own[i], own[j])) for i in range(40) for j in range(i)]
    assert min(apart) > 8
    assert 24 < np.mean(apart) < 40


def test_phash_is_the_sign_of_the_lowest_frequencies_against_their_median():
    image = PHOTOS[3].convert("L").resize((32, 32))
    low = dctn(np.asarray(image, float), type=2)[:8, :8]
    bits = (low > np.median(low)).ravel()
    ours = [bool(int(perceptual_hash.phash(np.asarray(image))) >> (63 - i) & 1) for i in range(64)]
    assert ours == bits.tolist()


@given(st.integers(0, 7), st.integers(0, 10**6))
def test_near_pairs_are_all_pairs_within_the_distance(distance, seed):
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 2**63, 12, dtype=np.uint64)
    flips = [sum(1 << int(b) for b in rng.choice(64, k, replace=False)) for k in range(1, 10)]
    found = np.concatenate([found, [found[0]] * 3, found[:9] ^ np.array(flips, np.uint64)])
    pairs = {
        (i, j) for j in range(len(found)) for i in range(j) if bin(int(found[i] ^ found[j])).count("1") <= distance
    }
    assert {tuple(p) for p in perceptual_hash.near_pairs(found, distance).tolist()} == pairs


def test_the_answer_stays_linear_where_thousands_share_one_hash():
    many = np.concatenate([np.zeros(5000, np.uint64), [np.uint64(1)]])
    pairs = perceptual_hash.near_pairs(many, 1)
    assert len(pairs) == 5000
    assert (perceptual_hash.groups(pairs, 5001) == 0).all()


def test_a_hundred_thousand_hashes_take_a_moment():
    random = np.random.default_rng(0).integers(0, 2**63, 100_000, dtype=np.uint64)
    random[-1] = random[0] ^ np.uint64(0b111)
    assert [0, 99_999] in perceptual_hash.near_pairs(random, 3).tolist()


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30))
def test_groups_are_what_pairs_connect(pairs):
    groups = perceptual_hash.groups(np.array(pairs, np.int64).reshape(-1, 2), 20)
    member = [{i} for i in range(20)]
    for a, b in pairs:
        joined = member[a] | member[b]
        for i in joined:
            member[i] = joined
    assert groups.tolist() == [min(m) for m in member]


def test_no_hashes_no_pairs():
    assert perceptual_hash.near_pairs(np.array([], np.uint64), 3).shape == (0, 2)
    assert perceptual_hash.alike(np.zeros((0, 16, 16), np.uint8), np.zeros((0, 16, 16), np.uint8)).shape == (0,)


def test_flat_pictures_are_alike_only_when_as_bright():
    black, white = np.zeros((1, 16, 16), np.uint8), np.full((1, 16, 16), 255, np.uint8)
    assert perceptual_hash.alike(black, black) == 1
    assert perceptual_hash.alike(black, white) == 0


def test_exact_digests_tell_bytes_and_pixels():
    assert perceptual_hash.exact(b"a") == perceptual_hash.exact(b"a") != perceptual_hash.exact(b"b")
    x = np.arange(12, dtype=np.uint8)
    assert perceptual_hash.exact_pixels(x.reshape(3, 4)) != perceptual_hash.exact_pixels(x.reshape(4, 3))
