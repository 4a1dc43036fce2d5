import torch


def custom_kernel(data):
    x, output = data
    half = x.numel() // 2
    output[:half] = torch.cumsum(x[:half], dim=0)
    output[half:] = torch.cumsum(x[half:], dim=0) + output[half - 1]
    return output
