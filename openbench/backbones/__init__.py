"""Networks with one interface: CIFAR ResNets, torchvision, timm, open_clip, checkpoints and cached features.

`base.Backbone` is the interface, and chooses the device; `network` has classifiers and ensembles; `cifar`, `libraries`
(timm, torchvision) and `open_clip` have the networks, `rows` features from elsewhere, `heads` fitted classifiers;
`anatomy` finds head and stages, `checkpoints` reads weights.
"""
