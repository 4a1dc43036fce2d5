import torch


def close(received, expected, rtol, atol):
    if received.shape != expected.shape:
        return False, "another shape"
    good = torch.allclose(received, expected.to(received.dtype), rtol=rtol, atol=atol)
    return good, "" if good else "values differ"


def make_close(reference, rtol=1e-5, atol=1e-8):
    def check(data, output):
        return close(output, reference(data), rtol, atol)

    return check
