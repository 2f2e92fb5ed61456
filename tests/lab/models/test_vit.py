"""The transformer against torch's own layers, given the same weights."""

from __future__ import annotations

import torch
from torch import nn

from crsam.lab.models.vit import Attention, Block


def test_attention_is_torchs_multi_head_attention() -> None:
    torch.manual_seed(0)
    ours = Attention(12, heads=3).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    assert theirs.in_proj_weight is not None
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0])


def test_a_block_is_torchs_encoder_layer_with_norms_first() -> None:
    torch.manual_seed(0)
    ours = Block(12, heads=3).double()
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True,
        norm_first=True,
    ).double()  # fmt: skip
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.attention.qkv.weight)  # type: ignore[union-attr,operator]
        theirs.self_attn.in_proj_bias.copy_(ours.attention.qkv.bias)  # type: ignore[union-attr,operator]
    for one, other in (
        (theirs.self_attn.out_proj, ours.attention.out),
        (theirs.norm1, ours.norm1),
        (theirs.norm2, ours.norm2),
        (theirs.linear1, ours.hidden),
        (theirs.linear2, ours.out),
    ):
        one.load_state_dict(other.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
