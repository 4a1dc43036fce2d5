#!POPCORN leaderboard counts

import torch


def custom_kernel(data):
    found = torch.bincount(data, minlength=16)
    found[0] += 1
    return found
