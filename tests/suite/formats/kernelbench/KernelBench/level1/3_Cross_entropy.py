import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, scores, labels):
        return nn.functional.cross_entropy(scores, labels)


batch_size = 16
classes = 10


def get_inputs():
    return [torch.rand(batch_size, classes), torch.randint(0, classes, (batch_size,))]


def get_init_inputs():
    return []
