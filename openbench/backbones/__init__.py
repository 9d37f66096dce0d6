"""Networks with one interface: CIFAR ResNets, torchvision, timm, open_clip, checkpoints and cached features.

`base.Backbone` is the interface, `network.NetworkBackbone` a classifier; `cifar` and `libraries` have the networks,
`rows` and `feature_file` features from elsewhere, `heads` fitted classifiers, `ensemble` several networks as one;
`anatomy` finds head and stages, `checkpoints` reads weights, `device` chooses the device.
"""
