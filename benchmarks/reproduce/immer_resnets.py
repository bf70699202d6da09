"""Residual networks on CIFAR-10 and CIFAR-100 (Immer et al. 2021).

What even a short version needs a GPU for: ResNets of 20 to 110 layers (Table C8), and 45 networks
each on CIFAR-10 and CIFAR-100 (Table C9, C10, Fig. 7). CIFAR-100 is not among the data at hand.
A row of Table C8 or C9 is a study; with augmentation it has the last two keys:

    nas-evidence search cifar10 --set plan.epochs=250 --set plan.online.curvature=diag_ef
        --set 'estimators=["diag_ef"]' --set objective=diag_ef
        --set 'plan.augment=["RandomCrop", "RandomHorizontalFlip"]' --set plan.likelihood_power=5

GPU_HOURS counts 5 seeds of Table C8 at half an hour to an hour and a half each, and one run of
each network of Table C9 and C10.
"""

PAPER = "Immer et al. 2021"
FIGURE = "Fig. 7, Table C8, Table C9, Table C10"
TITLE = "Residual networks: depth and width"
CLAIM = (
    "Wider residual networks have more evidence and accuracy, deeper ones need not (rank "
    "correlation 0.97 of evidence and accuracy)."
)
NEEDS = ("cifar10",)
FULL_HOURS = 80.0
GPU_HOURS = 80
