"""A trained model reads on with more memory than it was trained with, and is none the worse."""

import pytest
import small_runs

from npxl.inference import evaluate

MEM_LEN = TGT_LEN = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Some seconds of training on the bundled text."""
    run = small_runs.create(
        tmp_path_factory.mktemp("trained") / "run",
        "kjv",
        dict(d_model=32, d_head=16, d_inner=64, mem_len=MEM_LEN, dropout=0.0, pre_lnorm=True),
        batch_size=8, tgt_len=TGT_LEN, steps=400, lr=1e-2, warmup_steps=20,
        eval_interval=1000, save_interval=3600.0,
    )  # fmt: skip
    return small_runs.finish(run.folder)


@pytest.mark.fault(
    "KY #112", "CyberZHG/keras-transformer-xl #7", "CyberZHG/keras-transformer-xl #8"
)
def test_four_times_the_memory_does_not_hurt_and_none_does(run):
    """With distances encoded wrongly or states kept wrongly, more would be worse than less."""
    model, text = run.model("last"), run.corpus.valid.tokens[:20_000]
    nll = {
        mem_len: evaluate(model.reconfigured(mem_len=mem_len), text, TGT_LEN, n_streams=16).nll
        for mem_len in (0, MEM_LEN, 4 * MEM_LEN)
    }
    assert nll[4 * MEM_LEN] <= nll[MEM_LEN] + 0.01
    assert nll[4 * MEM_LEN] < nll[0] - 0.05
