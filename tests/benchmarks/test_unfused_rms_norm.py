"""The RMSNorm written out computes what PyTorch's does."""

import pytest


@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_is_rms_norm(eps, precision):
    torch = pytest.importorskip("torch")
    from benchmarks.unfused_rms_norm import rms_norm

    dtype = getattr(torch, precision)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 64, generator=generator).to(dtype)
    weight = torch.rand(64, generator=generator).to(dtype)
    for given in (weight, None):
        expected = torch.nn.functional.rms_norm(x, (64,), given, eps)
        assert rms_norm(x, (64,), given, eps).dtype == dtype
        torch.testing.assert_close(rms_norm(x, (64,), given, eps), expected, rtol=2e-2, atol=2e-2)
