def custom_kernel(data):
    a, b, output = data
    output += 2 * a + b
    return output
