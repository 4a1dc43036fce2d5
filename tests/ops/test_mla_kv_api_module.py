"""MLAProjection: the layer over mla_kv, and weights of published models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelproof.ops.mla_kv import MLAProjection

SIZES = dict(hidden_size=40, rank=12, kv_heads=3, k_dim=8, v_dim=6)


def layer(**changes: Any) -> MLAProjection:
    torch.manual_seed(0)
    return MLAProjection(**{**SIZES, "rope_dim": 4, **changes})


def published(module: MLAProjection, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """DeepSeek's chain, written as its inference code does: project, split, norm, project, split,
    concatenate."""
    joined = module.kv_a_proj_with_mqa(hidden)
    latent, k_pe = joined.split([12, module.rope_dim], dim=-1)
    if module.kv_a_layernorm is not None:
        latent = module.kv_a_layernorm(latent)
    both = module.kv_b_proj(latent).view(*hidden.shape[:-1], 3, 14)
    k, v = both.split([8, 6], dim=-1)
    shared = k_pe.unsqueeze(-2).expand(*k.shape[:-1], module.rope_dim)
    return torch.cat((k, shared), dim=-1), v


@pytest.mark.parametrize("changes", [{}, dict(rope_dim=0), dict(norm_eps=None), dict(norm_eps=0.5)])
def test_it_is_the_published_chain(changes: dict[str, Any]) -> None:
    module, hidden = layer(**changes), torch.randn(2, 5, 40)
    for a, b in zip(module(hidden), published(module, hidden), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_parameter() -> None:
    module, hidden = layer(), torch.randn(2, 5, 40, requires_grad=True)
    wanted = [hidden, *module.parameters()]
    ours = torch.autograd.grad(sum(x.square().sum() for x in module(hidden)), wanted)
    theirs = torch.autograd.grad(sum(x.square().sum() for x in published(module, hidden)), wanted)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("style", ["hub", "inference"])
def test_published_names_load(style: str) -> None:
    names = {
        "hub": ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
        "inference": ("wkv_a", "kv_norm", "wkv_b"),
    }[style]
    shapes = ((16, 40), (12,), (42, 12))
    weights = {f"attn.{n}.weight": torch.randn(s) for n, s in zip(names, shapes, strict=True)}
    model = nn.ModuleDict({"attn": layer()})
    assert not any(model.load_state_dict(weights))
    for own, given in zip(model["attn"].parameters(), weights.values(), strict=True):
        assert torch.equal(own, given)
    # What the model saves, it loads.
    other = nn.ModuleDict({"attn": layer()})
    other.load_state_dict(model.state_dict())
    hidden = torch.randn(3, 40)
    assert torch.equal(other["attn"](hidden)[0], model["attn"](hidden)[0])


def test_a_bias_is_not_dropped_silently() -> None:
    state = layer().state_dict()
    state["kv_a_proj_with_mqa.bias"] = torch.zeros(16)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        layer().load_state_dict(state)


def test_rotation_is_given_the_rotary_part_alone() -> None:
    module, hidden = layer(), torch.randn(2, 5, 40)
    plain = module(hidden)
    seen: list[Tensor] = []

    def rotate(part: Tensor) -> Tensor:
        seen.append(part)
        return -part

    turned = module(hidden, rotate)
    assert seen[0].shape == (2, 5, 1, 4)
    assert torch.equal(turned[0][..., 8:], -plain[0][..., 8:])
    assert torch.equal(turned[0][..., :8], plain[0][..., :8])
    assert torch.equal(turned[1], plain[1])


def test_autocast_converts_as_linear_does() -> None:
    module, hidden = layer(), torch.randn(2, 5, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(hidden)
        assert [x.dtype for x in found] == [torch.bfloat16] * 2
        for a, b in zip(found, published(module, hidden), strict=True):
            torch.testing.assert_close(a, b.to(a), rtol=0.05, atol=0.05)


def test_compiled_and_described() -> None:
    module, hidden = layer(), torch.randn(2, 5, 40)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(hidden), module(hidden), strict=True):
        assert torch.equal(a, b)
    assert "kv_heads=3, k_dim=8, v_dim=6, rope_dim=4" in repr(module)


def test_dtype_and_device() -> None:
    module = layer(dtype=torch.float64, device="meta")
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert {p.device.type for p in module.parameters()} == {"meta"}
