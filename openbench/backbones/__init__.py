"""One surface over CIFAR ResNets, torchvision, timm, open_clip and your own checkpoints."""
