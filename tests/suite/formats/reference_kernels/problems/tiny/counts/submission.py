#!POPCORN leaderboard counts

import torch


def custom_kernel(data):
    return torch.stack([(data == i).sum() for i in range(16)])
