"""A family of one hidden layer, for studies made before modules had a name of their own."""

from torch import nn


class Fam:
    domains = {"width": {"low": 2, "high": 6}}

    def build(self, values, input_shape, n_outputs):
        width = values["width"]
        return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, n_outputs))
