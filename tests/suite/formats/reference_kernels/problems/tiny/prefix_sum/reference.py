import torch
from utils import close


def ref_kernel(data):
    x, _ = data
    return torch.cumsum(x.to(torch.float64), dim=0)


def generate_input(size, seed):
    x = torch.rand(size).cuda() + seed % 3
    y = torch.empty_like(x, dtype=torch.float32).contiguous()
    return x, y


def check_implementation(data, output):
    scale = data[0].numel() ** 0.5
    return close(output, ref_kernel(data), 1e-5 * scale, 1e-5 * scale)
