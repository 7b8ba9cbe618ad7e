"""Every law goes to another process and to disk, and comes back the same."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

import netsor as ns
from tests.internals import Provenance

from ..keep import keep

ORIGIN = Provenance("exact", "made for a test", 3, 7, 1e-5, ("a note",))
rng = np.random.default_rng(0)

LAWS = {
    "mixture": lambda: ns.Mixture(rng.normal(size=50), rng.gamma(2.0, 1.0, 50), ORIGIN),
    "weighted": lambda: ns.Mixture(
        0.0, rng.gamma(2.0, 1.0, 50), ORIGIN, rng.uniform(size=50)
    ),
    "atoms": lambda: ns.Mixture([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], ORIGIN),
    "limit": lambda: ns.paper.layer().law(n=ns.inf, draws=500),
    "attention": (
        lambda: ns.Attention(np.eye(3), function=lambda p: p / 3).law(
            10**18, points=2**12
        )
    ),
    "kernel estimate": lambda: ns.Empirical(rng.normal(size=50), 0.3),
    "engine": lambda: ns.paper.layer().law(n=8, draws=200),
}


@pytest.mark.parametrize("name", LAWS)
def test_loaded_law_equals_the_saved_one(name, tmp_path):
    law = LAWS[name]()
    law.save(tmp_path / "law")
    y = np.array([-1.0, 0.2, 2.0])
    for other in (pickle.loads(pickle.dumps(law)), ns.load(tmp_path / "law")):
        assert type(other) is type(law)
        assert other.origin == law.origin
        np.testing.assert_array_equal(
            other.with_error.pdf(y).value, law.with_error.pdf(y).value
        )
        np.testing.assert_array_equal(
            other.with_error.cdf(y).error, law.with_error.cdf(y).error
        )
        assert other.with_error.kurtosis() == law.with_error.kurtosis()
        np.testing.assert_array_equal(other.rvs(5, seed=1), law.rvs(5, seed=1))
    assert [path.name for path in tmp_path.iterdir()] == ["law"]


def test_loaded_limit_has_its_replicas(tmp_path):
    law = ns.paper.layer().law(n=ns.inf, draws=500)
    finite = ns.paper.layer().law(n=64, draws=500)
    law.save(tmp_path / "limit.npz")
    assert ns.kl(finite, ns.load(tmp_path / "limit.npz")) == ns.kl(finite, law)


def test_gathered_replicas_of_a_limit_come_back(tmp_path):
    replicas = ns.Mixture(0.0, [1.0, 2.0], ORIGIN, count=[3e6, 2e6], binning=1e-9)
    law = ns.HeadSum(LAWS["attention"]().head, 2, 1.0, ORIGIN, replicas)
    law.save(tmp_path / "limit.npz")
    for other in (pickle.loads(pickle.dumps(law)), ns.load(tmp_path / "limit.npz")):
        assert (other.mixture.replicas, other.mixture.binning) == (5_000_000, 1e-9)
        assert other.mixture.var() == replicas.var() == pytest.approx(1.4)


def test_loaded_joint_law_equals_the_saved_one(tmp_path):
    cov = np.eye(2) + rng.uniform(size=(200, 1, 1))
    law = ns.Joint(rng.normal(size=(200, 2)), cov, ORIGIN).condition(
        {0: 0.3}, noise=0.5
    )
    law.save(tmp_path / "joint.npz")
    for other in (pickle.loads(pickle.dumps(law)), ns.load(tmp_path / "joint.npz")):
        np.testing.assert_array_equal(other.cov(), law.cov())
        assert other.log_evidence == law.log_evidence


def test_failed_write_keeps_the_old_file(tmp_path):
    """If the disk takes no more half-way, the law that was there stays, and no other
    file is left.
    """
    resource = pytest.importorskip("resource")  # not on Windows
    path = tmp_path / "law.npz"
    old, new = LAWS["mixture"](), LAWS["engine"]()
    old.save(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            new.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ns.load(path).var() == old.var()
    assert list(tmp_path.iterdir()) == [path]


def test_loading_other_files_raises(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.arange(3))
    with pytest.raises(
        ValueError,
        match=(
            r"is not a law, or is damaged \(it has no 'about'\): it must be a file that"
            r" law.save\("
        ),
    ):
        ns.load(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="is not a law"):
        ns.load(path)
    with pytest.raises(FileNotFoundError):
        ns.load(tmp_path / "absent.npz")


def packed(arrays, about):
    """A file as `law.save` writes it, with these arrays."""
    file = io.BytesIO()
    np.savez(
        file,
        **{
            **arrays,
            "about": np.array(about if isinstance(about, str) else json.dumps(about)),
        },
    )
    return file.getvalue()


def unpacked(law, path):
    law.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(str(arrays.pop("about")))


def refused(path, content):
    """Whether a file is refused, in one short line that names it; if not, the law in it
    works.
    """
    path.write_bytes(content)
    law, message = None, ""
    try:
        law = ns.load(path)
    except ns.LawError as error:
        message = str(error)
    if law is None:
        assert repr(str(path)) in message
        assert "\n" not in message
        assert len(message) < 700
        return True
    (law[0] if isinstance(law, ns.Joint) else law).cdf(0.1)
    return False


WRONG = [None, -1, 0.5, float("nan"), "x", [], [1], {}, True, 10**400, "\ud800"]
ARRAYS = [
    np.array("x"),
    np.array(3),
    np.array([]),
    np.zeros((2, 2)),
    np.array([1j]),
    np.full(5, np.nan),
    np.array([2**63]),
]


@pytest.mark.parametrize(
    "name", keep(["weighted", "limit", "kernel estimate"], "weighted")
)
def test_damaged_files_are_refused_in_one_line(name, tmp_path):
    path, rng = tmp_path / "law.npz", np.random.default_rng(0)
    arrays, about = unpacked(LAWS[name](), path)
    good = path.read_bytes()
    assert all(refused(path, good[:k]) for k in (0, 3, *rng.integers(0, len(good), 20)))
    # most flips are seen; in a date of the archive one changes nothing
    for k in rng.integers(0, 8 * len(good), 100):
        flipped = bytearray(good)
        flipped[k // 8] ^= 1 << k % 8
        refused(path, bytes(flipped))
    for wrong in WRONG:
        assert refused(path, packed(arrays, {**about, "kind": wrong}))
        assert refused(path, packed(arrays, {**about, "origin": wrong}))
        assert (
            refused(path, packed(arrays, {**about, "format": wrong})) or wrong is True
        )
        for field in about["origin"]:
            refused(
                path,
                packed(arrays, {**about, "origin": {**about["origin"], field: wrong}}),
            )
    for field in ("format", "kind", "origin"):
        assert refused(
            path,
            packed(
                arrays, {key: value for key, value in about.items() if key != field}
            ),
        )
    for key in arrays:
        refused(path, packed({k: v for k, v in arrays.items() if k != key}, about))
        for wrong in ARRAYS:
            refused(path, packed({**arrays, key: wrong}, about))
    for text in (
        "",
        "[" * 100_000,
        "null",
        "[1]",
        '{"format": 1, "format": 1}',
        "1" * 5000,
    ):
        assert refused(path, packed(arrays, text))


@pytest.mark.parametrize("origin", ["status", "notes", "seed"])
def test_field_of_a_wrong_type_raises(origin, tmp_path):
    path = tmp_path / "law.npz"
    arrays, about = unpacked(LAWS["mixture"](), path)
    path.write_bytes(
        packed(arrays, {**about, "origin": {**about["origin"], origin: {"a": 1}}})
    )
    with pytest.raises(ns.LawError, match="its origin has a field of a wrong type"):
        ns.load(path)


def test_loading_takes_no_more_memory_than_the_file(tmp_path):
    """Declared shapes of terabytes, a compressed gigabyte, headers that Python cannot
    parse.
    """
    path = tmp_path / "law.npz"
    _, about = unpacked(LAWS["mixture"](), path)
    text = io.BytesIO()
    np.save(text, np.array(json.dumps(about)))

    def archive(member, method=zipfile.ZIP_STORED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as made:
            made.writestr("about.npy", text.getvalue())
            made.writestr("mean.npy", member)
        return file.getvalue()

    for shape, kind in (
        ("(10000000000000,)", "<f8"),
        ("(-1,)", "<f8"),
        ("(9,)", "|O"),
        ("(10000000000000,)", "<U0"),
    ):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        assert refused(path, archive(member))
    for header in (b"-" * 60_000, b"(" * 5000):
        assert refused(
            path,
            archive(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header),
        )
    assert refused(path, archive(bytes(10**7), zipfile.ZIP_DEFLATED))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
def test_loading_pipes_devices_and_folders_raises(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path, "a\0b"):
        with pytest.raises(ns.LawError, match="must be a regular file"):
            ns.load(path)
    for path in (3, None):
        with pytest.raises(ns.LawError, match=f"path={path} must be a str"):
            ns.load(path)
