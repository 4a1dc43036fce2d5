def custom_kernel(data):
    a, b, output = data
    output[...] = a + a + b
    return output
