import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, scores, labels):
        picked = scores.gather(1, labels[:, None])[:, 0]
        return (scores.logsumexp(dim=1) - picked).mean()
