"""One surface over CIFAR ResNets, torchvision, timm, open_clip and your own checkpoints.

`base.Backbone` is the surface, `network.NetworkBackbone` any classifier behind it; `cifar` and `libraries` have the
networks, `rows` and `feature_file` features from elsewhere, `heads` classifiers that are fitted on features, `ensemble`
several networks as one; `anatomy` (where head and stages are), `checkpoints` (weights on disk), `device`.
"""
