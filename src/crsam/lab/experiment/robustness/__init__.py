"""How runs stand corruptions and renditions: ImageNet-C, ImageNet-R, CIFAR-10-C, their like."""
