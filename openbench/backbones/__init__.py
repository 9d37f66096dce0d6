"""Networks with one interface: CIFAR ResNets, torchvision, timm, open_clip, checkpoints and cached features.

`base.Backbone` is the interface, `network` has classifiers and ensembles; `cifar` and `libraries` have the networks,
`rows` features from elsewhere, `heads` fitted classifiers; `anatomy` finds head and stages, `checkpoints` reads
weights, `device` chooses the device.
"""
