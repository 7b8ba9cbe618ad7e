"""Every law goes to another process and to disk, and comes back the same."""

import pickle

import numpy as np
import pytest

import netsor as ns
from netsor.laws import Origin

ORIGIN = Origin("exact", "made for a test", 3, 7, 1e-5, ("a note",))
rng = np.random.default_rng(0)

LAWS = {
    "mixture": lambda: ns.Mixture(rng.normal(size=50), rng.gamma(2.0, 1.0, 50), ORIGIN),
    "weighted": lambda: ns.Mixture(0.0, rng.gamma(2.0, 1.0, 50), ORIGIN, rng.uniform(size=50)),
    "atoms": lambda: ns.Mixture([0.0, 0.0, 1.0], [0.0, 0.0, 2.0], ORIGIN),
    "limit": lambda: ns.paper.layer().law(n=ns.inf, draws=500),
    "attention": lambda: ns.Attention(np.eye(3), function=lambda p: p / 3).law(10**18, points=2**12),
    "kernel estimate": lambda: ns.Empirical(rng.normal(size=50), 0.3),
    "engine": lambda: ns.paper.layer().law(n=8, draws=200),
}


@pytest.mark.parametrize("name", LAWS)
def test_laws_come_back(name, tmp_path):
    law = LAWS[name]()
    law.save(tmp_path / "law")
    y = np.array([-1.0, 0.2, 9.0])
    for other in (pickle.loads(pickle.dumps(law)), ns.load(tmp_path / "law")):
        assert type(other) is type(law)
        assert other.origin == law.origin
        np.testing.assert_array_equal(other.with_error.pdf(y).value, law.with_error.pdf(y).value)
        np.testing.assert_array_equal(other.with_error.cdf(y).error, law.with_error.cdf(y).error)
        assert other.with_error.kurtosis() == law.with_error.kurtosis()
        np.testing.assert_array_equal(other.rvs(5, seed=1), law.rvs(5, seed=1))
    assert [path.name for path in tmp_path.iterdir()] == ["law"]


def test_a_limit_takes_its_replicas_along(tmp_path):
    law = ns.paper.layer().law(n=ns.inf, draws=500)
    finite = ns.paper.layer().law(n=64, draws=500)
    law.save(tmp_path / "limit.npz")
    assert ns.kl(finite, ns.load(tmp_path / "limit.npz")) == ns.kl(finite, law)


def test_joint_laws_come_back(tmp_path):
    cov = np.eye(2) + rng.uniform(size=(200, 1, 1))
    law = ns.Joint(rng.normal(size=(200, 2)), cov, ORIGIN).condition({0: 0.3}, noise=0.5)
    law.save(tmp_path / "joint.npz")
    for other in (pickle.loads(pickle.dumps(law)), ns.load(tmp_path / "joint.npz")):
        np.testing.assert_array_equal(other.cov(), law.cov())
        assert other.log_evidence == law.log_evidence


def test_a_law_is_written_whole_or_not_at_all(tmp_path):
    """If the disk takes no more half-way, the law that was there stays, and nothing lies beside it."""
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


def test_what_is_no_law_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.arange(3))
    with pytest.raises(ValueError, match=r"is no law: it must be a file that law\.save\(path\) wrote"):
        ns.load(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="is no law"):
        ns.load(path)
    with pytest.raises(FileNotFoundError):
        ns.load(tmp_path / "absent.npz")
