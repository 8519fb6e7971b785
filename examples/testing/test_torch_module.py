"""npxl's checks on a Transformer-XL in torch: pytest examples/testing/test_torch_module.py."""

import torch
from transformer_xl import TransformerXL

from npxl.testing import TorchModule, parametrize

torch.manual_seed(0)
module = TransformerXL(vocab_size=7, n_layer=2, mem_len=4).double()
mine = TorchModule(
    module, module, module.no_memory, vocab_size=7, n_layer=2, mem_len=4, window=5,
    memory=torch.stack, select=lambda memory, rows: [each[rows] for each in memory],
)  # fmt: skip


@parametrize(mine, max_examples=10)
def test_transformer_xl(check, case):
    check(case)
