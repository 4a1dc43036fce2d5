import torch


def ref_kernel(data):
    return torch.bincount(data, minlength=16)


def generate_input(size, seed):
    draw = torch.Generator(device="cuda:0").manual_seed(seed)
    return torch.randint(0, 16, (size,), device="cuda:0", generator=draw)


def check_implementation(data, output):
    same = torch.equal(output, ref_kernel(data))
    return "" if same else "counts differ"
