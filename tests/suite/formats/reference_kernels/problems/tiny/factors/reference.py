import torch


def ref_kernel(data):
    return torch.linalg.qr(data)


def generate_input(size, seed):
    return torch.randn(size, size, device="cuda")


def check_implementation(data, output):
    q, r = output
    good = torch.allclose(q @ r, data, atol=1e-4)
    return good, "" if good else "the product differs"
