"""Ids of Hugging Face's hub, from a cache that is there, or not."""

import json

import pytest

import netsor as ns

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": 30,
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with one model."""
    folder = tmp_path / "hub" / "models--some-one--tiny-gpt2.1"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text(json.dumps(TINY))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return folder


def test_cached_model_is_read_by_id(cache, monkeypatch):
    model = ns.models.read("some-one/tiny-gpt2.1")
    assert (model.name, model.width, model.family) == (
        "some-one/tiny-gpt2.1",
        16,
        "gpt2",
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(cache.parent))
    monkeypatch.delenv("HF_HOME")
    assert ns.models.read("some-one/tiny-gpt2.1") == model


@pytest.mark.parametrize("broken", ["refs/main", f"snapshots/{COMMIT}/config.json"])
def test_uncached_model_error_says_what_to_do(cache, broken):
    with pytest.raises(
        ValueError, match=r"run `hf download meta-llama/Llama-3.1-8B config.json` first"
    ):
        ns.models.read("meta-llama/Llama-3.1-8B")
    (cache / broken).unlink()
    with pytest.raises(ValueError, match="is not in the cache of Hugging Face"):
        ns.models.read("some-one/tiny-gpt2.1")


def test_error_of_name_that_is_no_id_has_no_cache_advice(cache):
    (cache / "refs" / "main").write_text("../../../../etc")
    for name in ("gpt5", "a/b/c.json", "some-one/tiny-gpt2.1"):
        with pytest.raises(
            ValueError,
            match=r"must be the path of a file.*, or the name of a built-in model",
        ) as error:
            ns.models.read(name)
        assert ("hf download" in str(error.value)) == (name == "some-one/tiny-gpt2.1")
