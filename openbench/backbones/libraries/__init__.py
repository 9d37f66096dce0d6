"""Adapters for torchvision, timm and open_clip."""
