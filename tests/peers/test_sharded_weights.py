"""Weights that two processes shard: DTensors, and what torch.distributed.checkpoint
writes.

Each process runs this file. Process 0 prints the status and the first finding.
"""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch without distributed", allow_module_level=True)

import netsor as ns  # noqa: E402

RANKS = 2


class Pair(torch.nn.Module):
    """Two matrices that are sharded, and a gain that is not."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 96, bias=False)
        self.down = torch.nn.Linear(96, 64, bias=False)
        self.gain = torch.nn.Parameter(torch.ones(64))
        for part in (self.up, self.down):
            torch.nn.init.normal_(part.weight, std=0.02)


def main(folder, has_equal_seeds):
    """What each process does: draw shards, check them, and save them."""
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    mesh = init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0 if has_equal_seeds else rank)
    module = Pair()
    for axis, part in enumerate((module.up, module.down)):
        size = part.weight.shape[axis] // RANKS
        shard = 0.02 * torch.randn(part.weight.narrow(axis, 0, size).shape)
        whole = DTensor.from_local(shard, mesh, [Shard(axis)])
        part.weight = torch.nn.Parameter(whole)
    checkpoint.save(module.state_dict(), checkpoint_id=folder)
    check = ns.torch.check_init(lambda: module, parameters_only=True, reference=Pair)
    if rank == 0:
        print(check.status, check.first.what if check.first else "")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("has_equal_seeds", [False, True])
def test_shards_of_processes_are_checked(has_equal_seeds, tmp_path):
    folder = tmp_path / "checkpoint"
    command = [sys.executable, "-m", __name__, str(folder), str(has_equal_seeds)]
    paths = [*sys.path, os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
    }
    processes = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert not any(process.returncode for process in processes)
    status, *first = outputs[0].split()
    saved = ns.torch.check_init(
        Pair, parameters_only=True, reference=Pair, weights=folder
    )
    assert status == saved.status == ("FLAG" if has_equal_seeds else "ok")
    if has_equal_seeds:
        assert first == ["independence"]
        assert saved.first.what == "independence"
        assert "of 2 shards" in saved.first.text


def free_port():
    """A port that nothing uses."""
    import socket

    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        return connection.getsockname()[1]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "True")
