SHAPES = [{"rows": 3, "n": 24}, {"rows": 5, "n": 7}]
