"""Residual networks on CIFAR-10 and CIFAR-100, with augmentation (Immer et al. 2021).

What even a short version needs a GPU for: ResNets of 20 to 110 layers (Table C8), 45 networks each
on CIFAR-10 and CIFAR-100 (Table C9, C10, Fig. 7), and training with random crops and flips at
likelihood power 5 (Table C7). Augmentation is not in the training loop yet; CIFAR-100 is not among
the data at hand. Without augmentation a row of Table C8 or C9 is a study:

    nas-evidence search cifar10 --set 'family={"resnet":{"depth":{"options":[20]},"width":16}}'
        --set plan.epochs=250 --set plan.online.curvature=diag_ef --set estimators=["diag_ef"]

GPU_HOURS counts 5 seeds of Table C7 and C8 at half an hour to an hour and a half each, and one
run of each network of Table C9 and C10.
"""

PAPER = "P003"
FIGURE = "Fig. 7, Table C7, Table C8, Table C9, Table C10"
TITLE = "Residual networks: depth, width, and data augmentation"
CLAIM = (
    "Wider residual networks have more evidence and accuracy, deeper ones need not (rank "
    "correlation 0.97 of evidence and accuracy); augmentation raises the accuracy to 91 %."
)
NEEDS = ("cifar10",)
FULL_HOURS = 90.0
GPU_HOURS = 90
