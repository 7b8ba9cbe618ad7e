"""Folders of torch.distributed.checkpoint that are cut, compressed or from elsewhere."""

import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.internals import chunks_of

WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3)}


@pytest.fixture
def folder(tmp_path):
    dcp.save(WEIGHTS, checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def edited_metadata(folder, edit):
    """Change the metadata of a checkpoint."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    path.write_bytes(pickle.dumps(metadata))


def test_chunks_of_a_whole_checkpoint(folder):
    ((chunk,),) = chunks_of(folder).values()
    assert torch.equal(chunk.tensor, WEIGHTS["weight"])


def test_truncated_shard_is_no_checkpoint(folder):
    (shard,) = folder.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"is not a checkpoint of torch\.distributed"):
        chunks_of(folder)


def test_compressed_shard_is_refused(folder):
    def compress(metadata):
        for place in metadata.storage_data.values():
            place.transform_descriptors = ["stream.zstd"]

    edited_metadata(folder, compress)
    with pytest.raises(ValueError, match="compressed shards: save it without extens"):
        chunks_of(folder)


def test_paths_that_a_newer_python_pickled_are_read(folder):
    """Python 3.13 calls the module of paths pathlib._local."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.storage_meta.save_id = folder
    content = pickle.dumps(metadata, protocol=2)  # with names of modules as text
    assert b"cpathlib\n" in content
    path.write_bytes(content.replace(b"cpathlib\n", b"cpathlib._local\n"))
    ((chunk,),) = chunks_of(folder).values()
    assert torch.equal(chunk.tensor, WEIGHTS["weight"])
