"""Twelve shapes of train function that public code for the reference shows; only the import line is ours."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jupyter_torchdist import (
    DataConnector,
    PyTorchDistributor,
    PyTorchScalingConfig,
    ShardedDataConnector,
    WorkerResourceConfig,
    get_context,
)

TWO_BY_TWO = PyTorchScalingConfig(num_nodes=2, num_workers_per_node=2)


@pytest.fixture
def go(cluster, stage):
    def go(function, scaling=TWO_BY_TWO, **options):
        return PyTorchDistributor(function, scaling).run(artifact_stage_location=str(stage), display="none", **options)

    return go


def frame(rows=64):
    """Four features and a label that a linear model learns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    columns = {f"x{i}": x[:, i] for i in range(4)}
    return pd.DataFrame({**columns, "label": (x.sum(1) > 0).astype(np.int64)})


def test_shape_a_gloo_quickstart_with_its_own_init(go):
    """``init_process_group`` without a guard, backend gloo, a few steps of DDP."""

    def train_func():
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        dist.init_process_group(backend="gloo")
        context = get_context()
        torch.manual_seed(context.get_rank())
        model = DDP(nn.Linear(10, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 10)).pow(2).mean().backward()
            optimizer.step()
        weight = model.module.weight.detach().sum().item()
        dist.destroy_process_group()
        return weight

    result = go(train_func)
    assert len(set(result.values.values())) == 1, "all ranks hold the same model"


def test_shape_b_three_nodes_by_four_with_a_device_per_local_rank(go):
    """3 nodes × 4 workers; the device comes from the local rank, which on a CPU rank is the CPU."""

    def train_func():
        import torch
        import torch.distributed as dist

        context = get_context()
        local_rank = context.get_local_rank()
        device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        total = torch.ones(1, device=device)
        dist.all_reduce(total)
        return context.get_node_rank(), local_rank, int(total.item())

    scaling = PyTorchScalingConfig(3, 4, WorkerResourceConfig(num_cpus=0.5))
    result = go(train_func, scaling)
    assert result.values == {rank: (rank // 4, rank % 4, 12) for rank in range(12)}


def test_shape_c_guarded_init_world_rank_and_equal_shards(go):
    """``is_initialized`` guard, ``get_world_rank``, equal shards of one table."""

    def train_func():
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group()
        context = get_context()
        shard = context.get_dataset_map()["train"].get_shard()
        rows = sum(len(batch["label"]) for batch in shard.to_torch_dataset(batch_size=4))
        return context.get_world_rank(), rows

    result = go(train_func, dataset_map={"train": ShardedDataConnector.from_dataframe(frame(66), equal=True)})
    assert result.values == {rank: (rank, 16) for rank in range(4)}


def test_shape_d_explicit_env_init_method(go):
    """``init_method="env://"`` beside rank and world size from the environment."""

    def train_func():
        import torch
        import torch.distributed as dist

        dist.init_process_group(
            "gloo",
            init_method="env://",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        return total.item()

    assert set(go(train_func).values.values()) == {6.0}


def test_shape_e_an_image_classifier_saves_its_state_dict(go):
    """Rank 0 saves ``state_dict`` to ``get_model_dir()``; it is there after the run and loads."""
    import torch
    from torch import nn

    def train_func():
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        context = get_context()
        torch.manual_seed(0)
        images, labels = torch.rand(32, 1, 8, 8), torch.randint(0, 10, (32,))
        model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if context.get_rank() == 0:
            torch.save(model.module.state_dict(), os.path.join(context.get_model_dir(), "model.pt"))

    result = go(train_func)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    model.load_state_dict(torch.load(os.path.join(result.get_model_dir(), "model.pt"), weights_only=True))


def test_shape_f_four_cpu_workers_with_the_old_names(cluster, stage):
    """``PyTorchTrainer``, ``ScalingConfig`` and ``getContext`` of the older reference."""
    from jupyter_torchdist.compat import PyTorchTrainer, ScalingConfig, getContext

    def train_func():
        return getContext().get_rank(), getContext().get_world_size()

    scaling = ScalingConfig(
        num_nodes=1, num_workers_per_node=4, resource_requirements_per_worker=WorkerResourceConfig(1, 0)
    )
    result = PyTorchTrainer(train_func=train_func, scaling_config=scaling).run(artifact_stage_location=str(stage))
    assert result.values == {rank: (rank, 4) for rank in range(4)}


def test_shape_g_a_shard_becomes_files_and_the_rank_variables_go(go):
    """A shard as a frame is written to files; RANK and friends are deleted before another library is called."""

    def train_func():
        import torch
        import torch.distributed as dist

        context = get_context()
        shard = context.get_dataset_map()["images"].get_shard().to_pandas()
        folder = Path(context.get_model_dir()) / f"rank-{context.get_rank()}"
        folder.mkdir()
        for index, row in shard.iterrows():
            (folder / f"{index}.txt").write_text(str(row["label"]))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.barrier()
        return len(shard), context.get_rank(), total.item()

    result = go(train_func, dataset_map={"images": ShardedDataConnector.from_dataframe(frame(40))})
    assert result.values == {rank: (10, rank, 4.0) for rank in range(4)}
    assert len(list(Path(result.get_model_dir()).glob("rank-*/*.txt"))) == 40


def test_shape_h_no_dataset_map_and_a_closure(go):
    """The data comes from variables around the function."""
    data = np.arange(12.0)
    scale = 3

    def train_func():
        context = get_context()
        assert context.get_dataset_map() is None and context.get_hyper_params() is None
        return float((data[context.get_rank() :: context.get_world_size()] * scale).sum())

    assert sum(go(train_func).values.values()) == 3 * data.sum()


def test_shape_i_shards_of_file_paths(go, tmp_path):
    """Each rank reads the files whose paths are in its shard."""
    paths = []
    for number in range(8):
        paths.append(str(tmp_path / f"{number}.txt"))
        Path(paths[-1]).write_text(str(number))

    def train_func():
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        shard = get_context().get_dataset_map()["files"].get_shard()
        return sum(int(Path(row["path"]).read_text()) for row in shard.to_torch_dataset())

    result = go(train_func, dataset_map={"files": ShardedDataConnector.from_dataframe(pd.DataFrame({"path": paths}))})
    assert list(result.values.values()) == [1, 5, 9, 13]


def test_shape_j_a_lambda_and_ranks_that_return_early(go):
    """Non-zero ranks have nothing to do and return; rank 0 goes on alone."""
    import time

    result = go(lambda: get_context().get_rank() or time.sleep(0.3) or "worked")
    assert result.values == {0: "worked", 1: 1, 2: 2, 3: 3}


def test_shape_k_rank_0_reports_an_epoch_with_lists(go):
    """Metrics of rank 0 each epoch, with lists among the values."""

    def train_func(params):
        context = get_context()
        reporter = context.get_metrics_reporter()
        for epoch in range(int(params["epochs"])):
            if context.get_rank() == 0:
                reporter.log_metrics({"epoch": epoch, "loss": 1 / (epoch + 1), "per_class": [0.1 * epoch, 0.2]})

    metrics = go(train_func, hyper_params={"epochs": "3"}).get_metrics()
    assert metrics["epoch"].tolist() == [0, 1, 2] and metrics["loss"].tolist() == [1, 1 / 2, 1 / 3]
    assert metrics["per_class"].tolist() == [[0.0, 0.2], [0.1, 0.2], [0.2, 0.2]]


def test_shape_l_a_sharded_torch_dataset_in_a_data_loader(go):
    """``get_shard().to_torch_dataset(batch_size=…)`` in a DataLoader with ``batch_size=None``; the label is popped."""

    def train_func(params):
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader

        context = get_context()
        shard = context.get_dataset_map()["train"].get_shard()
        loader = DataLoader(shard.to_torch_dataset(batch_size=params["batch"]), batch_size=None)
        torch.manual_seed(0)
        model = DDP(nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(20):
            for batch in loader:
                label = batch.pop("label").squeeze(1)
                features = torch.cat([torch.as_tensor(column) for column in batch.values()], dim=1)
                assert features.shape == (params["batch"], 4)
                loss = nn.functional.cross_entropy(model(features), torch.as_tensor(label))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return loss.item()

    data = {"train": ShardedDataConnector.from_dataframe(frame(64))}
    result = go(train_func, dataset_map=data, hyper_params={"batch": 4})
    assert result.value < 0.3, "it learned"


def test_an_unsharded_connector_is_whole_on_every_rank(go):
    """A ``DataConnector`` in the dataset map holds every row on every rank."""

    def train_func():
        return len(get_context().get_dataset_map()["test"].to_pandas(limit=7)), len(
            get_context().get_dataset_map()["test"].to_pandas()
        )

    assert set(go(train_func, dataset_map={"test": DataConnector.from_dataframe(frame(30))}).values.values()) == {
        (7, 30)
    }


def test_the_references_own_import_lines_work_where_its_package_is_missing(tmp_path):
    """After ``install_snowflake_names()`` a script with the reference's import lines runs as it stands."""
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "from jupyter_torchdist.compat import install_snowflake_names\n"
        "install_snowflake_names()\n"
        "from snowflake.ml.modeling.distributors.pytorch import (\n"
        "    PyTorchDistributor, PyTorchScalingConfig, WorkerResourceConfig, get_context, Context)\n"
        "from snowflake.ml.modeling.distributors.pytorch.pytorch_trainer import PyTorchTrainer\n"
        "from snowflake.ml.modeling.distributors.pytorch.scaling_config import ScalingConfig\n"
        "from snowflake.ml.modeling.distributors.pytorch.context import getContext\n"
        "from snowflake.ml.data.sharded_data_connector import ShardedDataConnector\n"
        "from snowflake.ml.data.data_connector import DataConnector\n"
        "import jupyter_torchdist as t\n"
        "assert PyTorchTrainer is PyTorchDistributor is t.PyTorchDistributor and getContext is get_context\n"
        "assert ScalingConfig is t.PyTorchScalingConfig and DataConnector is t.DataConnector\n"
        "def train():\n    return get_context().get_rank()\n"
        "if __name__ == '__main__':\n"
        "    result = PyTorchDistributor(train, PyTorchScalingConfig(1, 2, WorkerResourceConfig(1, 0))).run(display='none')\n"
        "    print(result.values)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == "{0: 0, 1: 1}", done.stderr
